/* `prepare` and then `drop` run these steps and nothing else. Nothing that belongs to the job is opened, read or
   executed here: that is allowed only after `verify`, the last step, has returned. */

#include "identity.h"

#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define UMASK 0002
#define SIGNALS 64
#define OPEN_FILES 1024 /* what programs that use select(2) can bear; a job may raise it to the hard limit */
#define STATUS_BYTES 16384

/* Others of the helper's account must not read this memory, in which there is a site's environment. An execve, and a
   change of ids, may have made it readable. */
static int undumpable(void)
{
    return prctl(PR_SET_DUMPABLE, 0) == 0 ? 0 : failed();
}

/* Leave the helper's session and process group: signals to either must not reach the job, nor its to them. */
static int new_session(void)
{
    return setsid() >= 0 ? 0 : failed();
}

/* Give every signal its default action and block none: dispositions and mask survive execve. The C library would keep
   two signals for itself, which posix_spawn leaves ignored, so the kernel is asked. */
static int default_signals(void)
{
    static const unsigned long nothing[8]; /* a struct sigaction of the kernel's: default action, no flags, no mask */
    for (int number = 1; number <= SIGNALS; number++) {
        if (number != SIGKILL && number != SIGSTOP
            && syscall(SYS_rt_sigaction, number, nothing, NULL, SIGNALS / 8) != 0)
            return failed();
    }
    return syscall(SYS_rt_sigprocmask, SIG_SETMASK, nothing, NULL, SIGNALS / 8) == 0 ? 0 : failed();
}

/* Let the site's group write what its jobs make. */
static int stated_umask(void)
{
    umask(UMASK);
    return 0;
}

static int stated_limit(__rlimit_resource_t which, rlim_t wanted)
{
    struct rlimit limit;
    if (getrlimit(which, &limit) != 0)
        return failed();
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    return setrlimit(which, &limit) == 0 ? 0 : failed();
}

/* Set soft limits to stated values, whatever the helper runs with. Hard limits stay: they are the unit's. */
static int stated_limits(void)
{
    return stated_limit(RLIMIT_NOFILE, OPEN_FILES) == 0 ? stated_limit(RLIMIT_CORE, 0) : -1;
}

/* Run at nice 0 on every processor that the host lets us have. */
static int stated_priority(void)
{
    /* An administrator may have niced the helper itself: that bounds its jobs too. */
    if (setpriority(PRIO_PROCESS, 0, 0) != 0 && errno != EACCES && errno != EPERM)
        return failed();
    unsigned char all[1024]; /* more than any kernel knows; it takes those that there are */
    memset(all, 0xff, sizeof all);
    return syscall(SYS_sched_setaffinity, 0, sizeof all, all) == 0 ? 0 : failed();
}

/* Move into the job's leaf, as the helper's account: after the drop the file is not ours to write. Failing to throttle
   never stops a job. */
static int join_cgroup(const struct identity *who, char *warning, size_t size)
{
    warning[0] = '\0';
    if (who->cgroup_procs[0] == '\0')
        return 0;
    /* Made where a plain directory stands in for a cgroup; a real one has it. */
    int procs = open(who->cgroup_procs, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (procs < 0 || write(procs, "0", 1) != 1)
        snprintf(warning, size, "limits are not applied, the job's cgroup cannot be joined: %s", strerror(errno));
    if (procs >= 0)
        close(procs);
    return 0;
}

/* Replace the helper's supplementary groups by the granted list, the effective GID included. */
static int set_groups(const struct identity *who)
{
    return !who->changes || setgroups(who->group_count, who->groups) == 0 ? 0 : failed();
}

/* Set real, effective and saved GID. Before the uid: afterwards CAP_SETGID would be used as the site. */
static int set_gids(const struct identity *who)
{
    gid_t gid = who->groups[0];
    return !who->changes || setresgid(gid, gid, gid) == 0 ? 0 : failed();
}

/* Set real, effective and saved uid. The capabilities survive this between accounts other than root. */
static int set_uids(const struct identity *who)
{
    return !who->changes || setresuid(who->uid, who->uid, who->uid) == 0 ? undumpable() : failed();
}

/* Join a new session keyring: a shared one would let a site read another's keys. As the site, whose quota pays. */
static int own_keyring(void)
{
    if (syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL, 0, 0, 0) >= 0)
        return 0;
    /* A kernel without keyrings shares none; a seccomp filter, as of a container, keeps them from the job as well. */
    return errno == ENOSYS || errno == EPERM ? 0 : failed();
}

/* Empty the inheritable set (the ambient one falls with it), the effective and the permitted one, for good. */
static int empty_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    static const struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];
    return syscall(SYS_capset, &header, none) == 0 ? 0 : failed();
}

/* Let no later execve give anything: set-user-ID programs and file capabilities have no effect any more. */
static int no_new_privileges(void)
{
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : failed();
}

/* Return the value of a field of /proc/self/status, or NULL. */
static const char *field(const char *status, const char *name)
{
    size_t length = strlen(name);
    for (const char *line = status; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, length) == 0 && line[length] == ':')
            return line + length + 1;
    }
    return NULL;
}

/* Whether every number in a field's line is `wanted`, and there are `count`. */
static bool all_are(const char *value, unsigned long wanted, int count, int base)
{
    if (value == NULL)
        return false;
    for (; count > 0; count--) {
        char *end;
        if (strtoul(value, &end, base) != wanted || end == value)
            return false;
        value = end;
    }
    return value[strspn(value, " \t")] == '\n';
}

static bool is_granted(const struct identity *who, unsigned long gid)
{
    for (size_t i = 0; i < who->group_count; i++)
        if (who->groups[i] == gid)
            return true;
    return false;
}

/* Whether the kernel's list and the granted one have the same members. Set by us, it holds the effective GID too; in
   single-account mode whoever started the helper decided. */
static bool groups_are(const char *value, const struct identity *who)
{
    bool found[MOST_GROUPS] = {!who->changes};
    if (value == NULL)
        return false;
    while (value[strspn(value, " \t")] != '\n') {
        char *end;
        unsigned long gid = strtoul(value, &end, 10);
        if (end == value || !is_granted(who, gid))
            return false;
        for (size_t i = 0; i < who->group_count; i++)
            found[i] = found[i] || who->groups[i] == gid;
        value = end;
    }
    for (size_t i = 0; i < who->group_count; i++)
        if (!found[i])
            return false;
    return true;
}

static int read_status(char *status, size_t size)
{
    int file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return failed();
    size_t length = 0;
    ssize_t count;
    while (length < size - 1 && (count = read(file, status + length, size - 1 - length)) > 0)
        length += (size_t)count;
    close(file);
    status[length] = '\0';
    return length < size - 1 ? 0 : not_us("its status is too long");
}

static int must_not_go_back(const struct identity *who)
{
    uid_t somebody_else = who->uid - 1;
    gid_t root = 0;
    if (setuid(0) == 0 || errno != EPERM)
        return not_us("setuid(0) was possible after the drop");
    if (setresuid(somebody_else, somebody_else, somebody_else) == 0 || errno != EPERM)
        return not_us("setresuid to another account was possible after the drop");
    if (setresgid(0, 0, 0) == 0 || errno != EPERM)
        return not_us("setresgid(0) was possible after the drop");
    if (setgroups(1, &root) == 0 || errno != EPERM)
        return not_us("setgroups was possible after the drop");
    return 0;
}

/* Read back from the kernel what we are, its own words and not what a library believes, and try to go back. */
static int verify(const struct identity *who)
{
    static char status[STATUS_BYTES];
    static const char *const sets[] = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
    if (read_status(status, sizeof status) != 0)
        return -1;
    if (who->uid == 0 || who->groups[0] == 0)
        return not_us("it would be root");
    if (!all_are(field(status, "Uid"), who->uid, 4, 10))
        return not_us("uids: they must be %u", who->uid);
    if (!all_are(field(status, "Gid"), who->groups[0], 4, 10))
        return not_us("gids: they must be %u", who->groups[0]);
    if (!groups_are(field(status, "Groups"), who))
        return not_us("groups: they are not what was granted");
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (!all_are(field(status, sets[i]), 0, 1, 16))
            return not_us("capabilities: %s must be empty", sets[i]);
    if (!all_are(field(status, "NoNewPrivs"), 1, 1, 10))
        return not_us("no_new_privs: it must be set");
    if (!all_are(field(status, "Umask"), UMASK, 1, 8))
        return not_us("umask: it must be %04o", UMASK);
    if (getsid(0) != getpid() || getpgrp() != getpid())
        return not_us("session: it must be its own");
    if (!all_are(field(status, "SigBlk"), 0, 1, 16) || !all_are(field(status, "SigIgn"), 0, 1, 16))
        return not_us("signals: none may be ignored or blocked");
    return who->changes ? must_not_go_back(who) : 0;
}

int prepare(void)
{
    if (undumpable() != 0)
        return -1;
    if (new_session() != 0)
        return -1;
    if (default_signals() != 0)
        return -1;
    if (stated_umask() != 0)
        return -1;
    if (stated_limits() != 0)
        return -1;
    if (stated_priority() != 0)
        return -1;
    return 0;
}

int drop(const struct identity *who, char *warning, size_t size)
{
    if (join_cgroup(who, warning, size) != 0)
        return -1;
    if (set_groups(who) != 0)
        return -1;
    if (set_gids(who) != 0)
        return -1;
    if (set_uids(who) != 0)
        return -1;
    if (own_keyring() != 0)
        return -1;
    if (empty_capabilities() != 0)
        return -1;
    if (no_new_privileges() != 0)
        return -1;
    if (verify(who) != 0)
        return -1;
    return 0;
}
