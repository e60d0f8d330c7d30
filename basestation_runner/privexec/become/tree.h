/* Where a request's paths lead on this host: never outside the site's tree, whatever links its people make.

   To be used as the job, after the drop: then a path that the site's account may not walk fails here exactly as it
   would in the job. Everything returns -1 and notes a fault when it is not possible. */

#ifndef TREE_H
#define TREE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define MOST_ROOTS 8

/* A site's tree, held open: the only part of the filesystem that its requests can name. With `jailed`, paths are as
   seen inside the only root, absolute links included; otherwise they are paths of the host and must lie beneath one of
   the roots, after links have been followed too. */
struct tree {
    bool jailed;
    int count;
    int roots[MOST_ROOTS];
    const char *names[MOST_ROOTS];
};

int open_root(struct tree *tree, const char *path);

/* Return a descriptor of what is at `path`. */
int open_in(const struct tree *tree, const char *path, int flags);

/* Open the log at `path`, a regular file, to append to it; made with group `gid` if it did not exist. */
int open_log(const struct tree *tree, const char *path, gid_t gid, bool *readable);

/* Give where `path`, which need not exist, leads when a link inside the jail is in the way: the job itself resolves links
   as the host does. Gives nothing where it is the jail's root + path, and for a tree that is not jailed. */
int host_path(const struct tree *tree, const char *path, char out[PATH_MAX]);

/* Return a descriptor of a configured directory, reached only through links that root alone can make. The site's people
   can write in the parents of their rundir; a link of theirs there must not lead anywhere else. */
int open_trusted_directory(const char *path);

/* Open an input or output of a sandbox, and nothing outside `prefix`. */
int open_place(const char *path, const char *prefix);

/* Give the host's path of an open descriptor, as the kernel knows it. */
int path_of(int descriptor, char out[PATH_MAX]);

/* That `path` is a regular file which this process may use so (R_OK, X_OK). */
int require_file(const char *path, int access);

/* That only root can change `path` and everything on the way to it, links included. */
int require_roots_own(const char *path);

/* Whether a directory is this process's own, and nobody else can write in it. */
bool is_private(const char *path);

#endif
