#include "tree.h"

#include "fault.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRIES 4096    /* how often a path is resolved again when renames, anywhere on the host, get in the way: some ms */
#define MOST_LINKS 40 /* as path_resolution(7) */
#define LOG_MODE 0660 /* glider accounts append to the log through the site's group */
#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

/* Return where the next component begins, its length in `length`, 0 at the end; "" and "." change nothing. */
static const char *component(const char *path, size_t *length)
{
    for (;;) {
        path += strspn(path, "/");
        *length = strcspn(path, "/");
        if (*length != 1 || *path != '.')
            return path;
        path++;
    }
}

/* Return the rest of `path` if it is `ancestor` or beneath it, compared by components, else NULL. */
static const char *below(const char *path, const char *ancestor)
{
    if ((*path == '/') != (*ancestor == '/'))
        return NULL;
    for (;;) {
        size_t wanted, found;
        ancestor = component(ancestor, &wanted);
        if (wanted == 0)
            return path;
        path = component(path, &found);
        if (found != wanted || memcmp(path, ancestor, found) != 0)
            return NULL;
        path += found;
        ancestor += wanted;
    }
}

static bool same_place(const char *one, const char *other)
{
    const char *rest = below(one, other);
    size_t length;
    return rest != NULL && *component(rest, &length) == '\0';
}

/* Append a path's components to `out`, a "/" before each if there is something already. */
static int append(char out[PATH_MAX], const char *path)
{
    size_t length, used = strlen(out);
    while (*(path = component(path, &length)) != '\0') {
        if (used + length + 2 > PATH_MAX) {
            errno = ENAMETOOLONG;
            return failed();
        }
        if (used > 0 && out[used - 1] != '/')
            out[used++] = '/';
        memcpy(out + used, path, length);
        used += length;
        out[used] = '\0';
        path += length;
    }
    return 0;
}

static int open_how(int directory, const char *path, int flags, mode_t mode, unsigned long long resolve)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC, .mode = mode, .resolve = resolve};
    return (int)syscall(SYS_openat2, directory, path, &how, sizeof how);
}

int path_of(int descriptor, char out[PATH_MAX])
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    if (length < 0)
        return failed();
    out[length] = '\0';
    return 0;
}

static bool may_be_followed_in(int directory)
{
    struct stat facts; /* whose a link is does not count: who was given one by root still cannot aim it elsewhere */
    return fstat(directory, &facts) == 0 && facts.st_uid == 0 && (facts.st_mode & OTHERS_WRITE) == 0;
}

/* Go one component down from `here`; if that is a link, put its target before the `rest` instead. */
static int step_down(int *here, char rest[PATH_MAX], bool *is_link)
{
    size_t length;
    const char *name = component(rest, &length);
    char step[NAME_MAX + 1], target[PATH_MAX], joined[PATH_MAX];
    if (length > NAME_MAX) {
        errno = ENAMETOOLONG;
        return failed();
    }
    memcpy(step, name, length);
    step[length] = '\0';
    memmove(rest, name + length, strlen(name + length) + 1);
    int next = openat(*here, step, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    struct stat facts;
    if (next < 0)
        return failed();
    *is_link = fstat(next, &facts) == 0 && S_ISLNK(facts.st_mode);
    if (!*is_link) {
        close(*here);
        *here = next;
        return 0;
    }
    ssize_t size = readlinkat(next, "", target, sizeof target - 1);
    close(next);
    if (size < 0)
        return failed();
    target[size] = '\0';
    if (target[0] == '/') {
        int top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (top < 0)
            return failed();
        close(*here);
        *here = top;
    }
    if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= (int)sizeof joined) {
        errno = ENAMETOOLONG;
        return failed();
    }
    memcpy(rest, joined, strlen(joined) + 1);
    return 0;
}

static int walk(const char *path, int *here)
{
    char rest[PATH_MAX] = "";
    size_t length;
    if (append(rest, path) != 0)
        return -1;
    for (int links = 0; *component(rest, &length) != '\0';) {
        bool is_link = false, trusted = may_be_followed_in(*here) && links < MOST_LINKS;
        if (step_down(here, rest, &is_link) != 0)
            return -1;
        links += is_link;
        if (is_link && !trusted)
            return refused("%s leads through a link that others than root can change", path);
    }
    struct stat facts;
    if (fstat(*here, &facts) != 0)
        return failed();
    return S_ISDIR(facts.st_mode) ? 0 : refused("%s is not a directory", path);
}

int open_trusted_directory(const char *path)
{
    int here = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (here < 0)
        return failed();
    if (walk(path, &here) != 0) {
        close(here);
        return -1;
    }
    return here;
}

int open_root(struct tree *tree, const char *path)
{
    if (tree->count == MOST_ROOTS)
        return refused("it has too many roots");
    int root = open_trusted_directory(path);
    if (root < 0)
        return -1;
    tree->roots[tree->count] = root;
    tree->names[tree->count++] = path;
    return 0;
}

/* Find the root above `path`; `rest` is what is left of that. */
static int root_of(const struct tree *tree, const char *path, bool resolved, char rest[PATH_MAX])
{
    for (int i = 0; i < tree->count; i++) {
        char known[PATH_MAX];
        const char *root = tree->names[i];
        if (resolved) { /* a root may be named through a link of the host's */
            if (path_of(tree->roots[i], known) != 0)
                return -1;
            root = known;
        }
        const char *left = below(path, root);
        if (left == NULL)
            continue;
        rest[0] = '\0';
        if (append(rest, left) != 0)
            return -1;
        if (rest[0] == '\0')
            memcpy(rest, ".", 2);
        return tree->roots[i];
    }
    return refused("it is outside the site's tree");
}

/* Give where `path` leads when every link is followed, as open(2) with these flags would. */
static int resolve(const char *path, int flags, char out[PATH_MAX])
{
    if ((flags & O_CREAT) == 0)
        return realpath(path, out) != NULL ? 0 : failed();
    /* With O_EXCL: the last part need not exist, and is not followed. */
    char parent[PATH_MAX];
    size_t length = strlen(path);
    if (length >= sizeof parent) {
        errno = ENAMETOOLONG;
        return failed();
    }
    memcpy(parent, path, length + 1);
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = '\0';
    char *name = strrchr(parent, '/');
    *name++ = '\0';
    if (realpath(parent[0] == '\0' ? "/" : parent, out) == NULL)
        return failed();
    return append(out, name);
}

static int open_once(const struct tree *tree, const char *path, int flags, mode_t mode)
{
    if (tree->jailed) {
        int inside = open_how(tree->roots[0], path, flags, mode, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS);
        return inside >= 0 ? inside : failed();
    }
    char rest[PATH_MAX], resolved[PATH_MAX];
    int root = root_of(tree, path, false, rest);
    if (root < 0)
        return -1;
    int found = open_how(root, rest, flags, mode, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
    if (found >= 0 || errno != EXDEV)
        return found >= 0 ? found : failed();
    /* A link that is absolute or climbs above the root: see where it leads, and open only that, without any link. */
    if (resolve(path, flags, resolved) != 0)
        return -1;
    root = root_of(tree, resolved, true, rest);
    if (root < 0)
        return -1;
    found = open_how(root, rest, flags, mode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (found < 0 && errno == ELOOP) /* a directory has been exchanged for a link since */
        errno = EAGAIN;
    return found >= 0 ? found : failed();
}

static bool is(int number)
{
    return fault.kind == FAILED && fault.number == number;
}

static int open_or_make_once(const struct tree *tree, const char *path, int flags, mode_t mode)
{
    if (path[0] != '/')
        return refused("it is not an absolute path");
    if (tree->count == 0)
        return refused("it is outside the site's tree");
    for (int i = 0; i < TRIES; i++) {
        int found = open_once(tree, path, flags, mode);
        if (found >= 0 || !is(EAGAIN))
            return found;
    }
    return busy("it is being renamed all the time");
}

int open_in(const struct tree *tree, const char *path, int flags)
{
    return open_or_make_once(tree, path, flags, 0);
}

static int open_or_make(const struct tree *tree, const char *path, int flags, gid_t gid)
{
    for (int i = 0; i < MOST_LINKS; i++) {
        int found = open_in(tree, path, flags);
        if (found >= 0 || !is(ENOENT))
            return found;
        found = open_or_make_once(tree, path, flags | O_CREAT | O_EXCL, LOG_MODE);
        if (found < 0) {
            if (is(EEXIST))
                continue;
            return -1;
        }
        struct stat facts;
        if (fstat(found, &facts) != 0)
            return failed();
        /* A set-group-ID directory gave it another group. */
        return facts.st_gid == gid || fchown(found, (uid_t)-1, gid) == 0 ? found : failed();
    }
    return refused("it is a link that leads nowhere");
}

int open_log(const struct tree *tree, const char *path, gid_t gid, bool *readable)
{
    /* O_NONBLOCK: a FIFO or a lease must not make this wait; it is taken back once the file is known to be one. */
    const int flags = O_APPEND | O_NOCTTY | O_NONBLOCK;
    int log = open_or_make(tree, path, flags | O_RDWR, gid);
    *readable = log >= 0;
    if (log < 0 && (is(EACCES) || is(EPERM))) /* a log that the job may write but not read is still a log */
        log = open_or_make(tree, path, flags | O_WRONLY, gid);
    if (log < 0)
        return -1;
    struct stat facts;
    if (fstat(log, &facts) != 0)
        return failed();
    if (!S_ISREG(facts.st_mode)) {
        close(log);
        return refused("it is not a regular file");
    }
    return fcntl(log, F_SETFL, fcntl(log, F_GETFL) & ~O_NONBLOCK) == 0 ? log : failed();
}

/* Whether the jail's directory `here`, found as `found`, lies where it would without links. */
static int is_plain(const struct tree *tree, int found, const char *here, char resolved[PATH_MAX])
{
    char expected[PATH_MAX];
    if (path_of(found, resolved) != 0 || path_of(tree->roots[0], expected) != 0 || append(expected, here) != 0)
        return -1;
    return same_place(resolved, expected);
}

int host_path(const struct tree *tree, const char *path, char out[PATH_MAX])
{
    char here[PATH_MAX] = "/", missing[PATH_MAX] = "", kept[PATH_MAX];
    out[0] = '\0';
    if (!tree->jailed)
        return 0;
    if (path[0] != '/')
        return refused("it is not an absolute path");
    if (append(here, path) != 0)
        return 0; /* too long for anything to be there */
    for (;;) {
        int found = open_in(tree, here, O_PATH);
        if (found >= 0) {
            int plain = is_plain(tree, found, here, out);
            close(found);
            if (plain > 0)
                out[0] = '\0';
            return plain == 0 ? append(out, missing) : plain > 0 ? 0 : -1;
        }
        if (fault.kind != FAILED)
            return -1;
        /* Nothing there that this account can see: its parent decides. */
        char *last = strrchr(here, '/');
        if (last[1] == '\0')
            return 0;
        memcpy(kept, missing, strlen(missing) + 1);
        missing[0] = '\0';
        if (append(missing, last + 1) != 0 || append(missing, kept) != 0)
            return -1;
        last[last == here] = '\0';
    }
}

int open_place(const char *path, const char *prefix)
{
    if (strcmp(path, prefix) == 0)
        return open_trusted_directory(path);
    struct tree tree = {.jailed = false};
    if (open_root(&tree, prefix) != 0)
        return -1;
    int found = open_in(&tree, path, O_PATH);
    close(tree.roots[0]);
    if (found < 0)
        return fault.kind == REFUSED ? refused("it leads outside %s", prefix) : -1;
    struct stat facts;
    if (fstat(found, &facts) != 0)
        return failed();
    if (!S_ISDIR(facts.st_mode) && !S_ISREG(facts.st_mode))
        return refused("it is neither a directory nor a regular file");
    return found;
}

int require_file(const char *path, int mode)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return failed();
    if (!S_ISREG(facts.st_mode))
        return refused("it is not a regular file");
    return access(path, mode) == 0 ? 0 : failed();
}

static int others_could_change(const char *where)
{
    return refused("others than root could change %s", where);
}

/* Of a path where there is nothing: whoever can write in the directory can put it there later. */
static int require_unmakeable(const char *path)
{
    char parent[PATH_MAX];
    struct stat facts;
    memcpy(parent, path, strlen(path) + 1);
    char *last = strrchr(parent, '/');
    last[last == parent] = '\0';
    if (stat(parent, &facts) != 0)
        return failed();
    return (facts.st_mode & OTHERS_WRITE) == 0 ? 0 : others_could_change(path);
}

static int require_roots(const char *here, const struct stat *facts)
{
    if (facts->st_uid != 0)
        return others_could_change(here);
    if (S_ISLNK(facts->st_mode))
        return 0;
    bool sticky = S_ISDIR(facts->st_mode) && (facts->st_mode & S_ISVTX) != 0;
    return (facts->st_mode & OTHERS_WRITE) == 0 || sticky ? 0 : others_could_change(here);
}

int require_roots_own(const char *path)
{
    char rest[PATH_MAX] = "", here[PATH_MAX] = "/", target[PATH_MAX], joined[PATH_MAX];
    struct stat facts;
    size_t length;
    if (append(rest, path) != 0)
        return -1;
    if (lstat("/", &facts) != 0)
        return failed();
    if (require_roots("/", &facts) != 0)
        return -1;
    for (int links = 0; *component(rest, &length) != '\0';) {
        char step[PATH_MAX] = "";
        const char *name = component(rest, &length);
        memcpy(step, name, length);
        step[length] = '\0';
        memmove(rest, name + length, strlen(name + length) + 1);
        char *last = strrchr(here, '/');
        if (strcmp(step, "..") == 0) {
            last[last == here] = '\0';
            continue;
        }
        if (append(here, step) != 0)
            return -1;
        if (lstat(here, &facts) != 0) {
            if (errno != ENOENT)
                return failed();
            return require_unmakeable(here);
        }
        if (require_roots(here, &facts) != 0)
            return -1;
        if (!S_ISLNK(facts.st_mode))
            continue;
        ssize_t size = readlink(here, target, sizeof target - 1);
        if (size < 0)
            return failed();
        target[size] = '\0';
        if (++links > MOST_LINKS)
            return others_could_change(path);
        if (snprintf(joined, sizeof joined, "%s/%s", target, rest) >= (int)sizeof joined) {
            errno = ENAMETOOLONG;
            return failed();
        }
        memcpy(rest, joined, strlen(joined) + 1);
        last = strrchr(here, '/');
        if (target[0] == '/')
            here[1] = '\0';
        else
            last[last == here] = '\0';
    }
    return 0;
}

bool is_private(const char *path)
{
    struct stat facts;
    return lstat(path, &facts) == 0 && S_ISDIR(facts.st_mode) && facts.st_uid == getuid()
        && (facts.st_mode & OTHERS_WRITE) == 0;
}
