/* Becoming the site: every step from the helper's identity to the job's, in the order in which they must happen. */

#ifndef IDENTITY_H
#define IDENTITY_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define MOST_GROUPS 256

/* Whom to become: plain numbers, resolved and allowed before.

   `groups` is the whole supplementary list, its first entry the effective GID. `changes` is false in single-account
   mode, where the helper has no capabilities and may only run what is already its own identity. `cgroup_procs` is the
   cgroup.procs file of the job's leaf, empty where there are no cgroups. */
struct identity {
    bool changes;
    uid_t uid;
    size_t group_count;
    gid_t groups[MOST_GROUPS];
    const char *cgroup_procs;
};

/* Set what has the same value for every job. Returns -1 when that failed: the process must then run nothing. */
int prepare(void);

/* Become `who` for good. Returns -1 when this process is not exactly that: it must then end without running anything.
   `warning` is what people should hear of, empty if there is nothing. */
int drop(const struct identity *who, char *warning, size_t size);

#endif
