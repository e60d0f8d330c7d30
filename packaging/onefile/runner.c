/* The first part of the one-file program. It finds the folder with the compiled program, or unpacks that from its own
   end, and becomes the program in there by execve: the same process, with its pid, capabilities, signals and
   environment as they are. It must not fork, change the environment, or leave a descriptor open.

   The folder's name says what is in it, and it has that name only when all of it is on the disk. Where:

   1. INSTALLED/NAME, which `runner install` makes, or
   2. CACHE/NAME, which root's first start makes: both only while root alone can write there, and all the way down;
   3. for a user without capabilities $XDG_CACHE_HOME/basestation-runner/NAME, which nobody but that user and root may be
      able to write. With capabilities nobody runs what another account than root could have changed.

   The file: this program, a zstd frame with a tar archive (ustar; regular files alone, each after its directories), a
   line "SIZE PATH" for each of those files, and the trailer. release/onefile.py writes it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zstd.h>

#ifndef INSTALLED
#define INSTALLED "/usr/lib/basestation-runner"
#endif
#ifndef CACHE
#define CACHE "/var/cache/basestation-runner"
#endif
#define MAGIC "basestation-run\n"
#define PROGRAM "runner"
#define UNFINISHED ".unfinished" /* what is being unpacked, or removed; under the lock */
#define LOCK ".lock"

enum { FAILED = 1, BLOCK = 512 };

struct trailer {
    char name[64]; /* ends with a zero byte */
    uint64_t archive;
    uint64_t index;
    char magic[16];
};

static char self[PATH_MAX]; /* this file's path, for messages */
static const char *file;    /* this file's content */
static const struct trailer *trailer;
static const char *archive, *files; /* its other parts */
static mode_t mask;                 /* that the program is to have */

static _Noreturn void fail(const char *where, const char *what, const char *hint)
{
    fprintf(stderr, "runner: %s: %s%s%s%s\n", where, what, hint ? " (" : "", hint ? hint : "", hint ? ")" : "");
    exit(FAILED);
}

static _Noreturn void fail_with_errno(const char *where, const char *what)
{
    char text[256];
    snprintf(text, sizeof text, "%s: %s", what, strerror(errno));
    fail(where, text, NULL);
}

static void join(char *path, const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) >= PATH_MAX)
        fail(folder, "the path is too long", NULL);
}

/* The file itself. */

static void open_self(void)
{
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int descriptor = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat facts;
    if (length < 0 || descriptor < 0 || fstat(descriptor, &facts) < 0)
        fail_with_errno("/proc/self/exe", "it cannot be read");
    self[length] = 0;
    size_t size = facts.st_size;
    file = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file == MAP_FAILED)
        fail_with_errno(self, "it cannot be read");
    close(descriptor);

    static struct trailer copy; /* the file's end is not aligned */
    memcpy(&copy, file + size - sizeof copy, sizeof copy);
    trailer = &copy;
    size_t before = size - sizeof copy;
    if (memcmp(copy.magic, MAGIC, sizeof copy.magic) || copy.name[sizeof copy.name - 1] || copy.index > before ||
        copy.archive > before - copy.index)
        fail(self, "it is not whole", "copy it anew");
    files = file + before - copy.index;
    archive = files - copy.archive;
}

/* Given the place in the index, return the next file's path and its size; NULL after the last one. */
static const char *next_file(const char **place, char *path, unsigned long long *size)
{
    const char *end = files + trailer->index, *line = *place;
    const char *newline = line < end ? memchr(line, '\n', end - line) : NULL;
    if (newline == NULL)
        return NULL;
    char *space;
    *size = strtoull(line, &space, 10);
    size_t length = newline - space - 1;
    if (*space != ' ' || length >= PATH_MAX)
        fail(self, "it is not whole", "copy it anew");
    memcpy(path, space + 1, length);
    path[length] = 0;
    *place = newline + 1;
    return path;
}

/* Who can write what. */

static bool is_safe(const struct stat *facts, uid_t user)
{
    bool sticky = S_ISDIR(facts->st_mode) && facts->st_mode & S_ISVTX;
    return (facts->st_uid == 0 || facts->st_uid == user) && (sticky || !(facts->st_mode & (S_IWGRP | S_IWOTH)));
}

/* Given a path without links, return whether only root and `user` can write it and every directory above it; if not,
   `path` is cut after the culprit. */
static bool is_safe_from_the_root(char *path, uid_t user)
{
    struct stat facts;
    if (lstat("/", &facts) < 0 || !is_safe(&facts, user))
        return false;
    for (char *end = path;; *end = '/') {
        end = strchrnul(end + 1, '/');
        bool last = *end == 0;
        *end = 0;
        if (lstat(path, &facts) < 0 || S_ISLNK(facts.st_mode) || !is_safe(&facts, user))
            return false;
        if (last)
            return true;
    }
}

/* Return whether all files of the program are there, and nobody but root and `user` can write them. */
static bool is_whole(const char *folder, uid_t user)
{
    char path[PATH_MAX], real[PATH_MAX];
    unsigned long long size;
    if (realpath(folder, real) == NULL || !is_safe_from_the_root(real, user))
        return false;
    int descriptor = open(real, O_PATH | O_DIRECTORY | O_CLOEXEC);
    bool whole = descriptor >= 0;
    for (const char *place = files; whole && next_file(&place, path, &size);) {
        struct stat facts;
        whole = fstatat(descriptor, path, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(facts.st_mode) &&
                (unsigned long long)facts.st_size == size && is_safe(&facts, user);
        /* Files of one directory follow each other, but a few hundred calls cost less than remembering that. */
        for (char *slash; whole && (slash = strrchr(path, '/'));) {
            *slash = 0;
            whole = fstatat(descriptor, path, &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(facts.st_mode) &&
                    is_safe(&facts, user);
        }
    }
    if (descriptor >= 0)
        close(descriptor);
    return whole;
}

static bool has_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
    if (syscall(SYS_capget, &header, sets) < 0)
        fail_with_errno(self, "its capabilities are not known");
    return sets[0].permitted || sets[1].permitted;
}

/* Unpacking. What fails ends the program: the folder has its name only when all has worked. */

static void make_directories(char *path, mode_t mode)
{
    for (char *end = path + 1; *end; ++end)
        if (*end == '/') {
            *end = 0;
            if (mkdir(path, mode) < 0 && errno != EEXIST)
                fail_with_errno(path, "it cannot be made");
            *end = '/';
        }
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        fail_with_errno(path, "it cannot be made");
}

static void sync_directory(const char *path)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0 || fsync(descriptor) < 0)
        fail_with_errno(path, "it cannot be written");
    close(descriptor);
}

static void remove_tree(const char *path)
{
    DIR *directory = opendir(path);
    if (directory == NULL && errno == ENOENT)
        return;
    if (directory == NULL)
        fail_with_errno(path, "it cannot be removed");
    for (struct dirent *entry; (entry = readdir(directory));) {
        char inside[PATH_MAX];
        struct stat facts;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        join(inside, path, entry->d_name);
        if (lstat(inside, &facts) == 0 && S_ISDIR(facts.st_mode))
            remove_tree(inside);
        else if (unlink(inside) < 0)
            fail_with_errno(inside, "it cannot be removed");
    }
    closedir(directory);
    if (rmdir(path) < 0)
        fail_with_errno(path, "it cannot be removed");
}

static void write_file(const char *path, mode_t mode, const char *content, size_t size)
{
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0)
        fail_with_errno(path, "it cannot be made");
    while (size) {
        ssize_t written = write(descriptor, content, size);
        if (written < 0)
            fail_with_errno(path, "it cannot be written");
        content += written;
        size -= written;
    }
    if (fchmod(descriptor, mode) < 0 || fsync(descriptor) < 0)
        fail_with_errno(path, "it cannot be written");
    close(descriptor);
}

static unsigned long long octal(const char *field, size_t size)
{
    char text[16] = {0};
    memcpy(text, field, size);
    return strtoull(text, NULL, 8);
}

/* Write what the archive holds into a folder that is there and empty. */
static void extract(const char *folder)
{
    unsigned long long size = ZSTD_getFrameContentSize(archive, trailer->archive);
    char *content = size < ZSTD_CONTENTSIZE_ERROR ? malloc(size) : NULL;
    if (content == NULL)
        fail(self, "there is not enough memory to unpack it", NULL);
    size_t got = ZSTD_decompress(content, size, archive, trailer->archive);
    if (ZSTD_isError(got)) /* the frame ends with a checksum */
        fail(self, "it is damaged", "copy it anew");

    char *end = content + got;
    for (char *head = content; head + BLOCK <= end && *head;) {
        char name[257] = {0}, path[PATH_MAX];
        unsigned long long length = octal(head + 124, 12);
        snprintf(name, sizeof name, "%.155s%s%.100s", head + 345, head[345] ? "/" : "", head);
        join(path, folder, name);
        bool directory = head[156] == '5';
        if (directory && mkdir(path, 0755) < 0)
            fail_with_errno(path, "it cannot be made");
        if (!directory)
            write_file(path, octal(head + 100, 8), head + BLOCK, length);
        head += BLOCK + (length + BLOCK - 1) / BLOCK * BLOCK;
    }
    free(content);
}

/* Given the place where the folder is to be, which has been made, make it; others may do the same at the same time. */
static void unpack(const char *place, const char *folder, uid_t user)
{
    char lock[PATH_MAX], unfinished[PATH_MAX];
    join(lock, place, LOCK);
    join(unfinished, place, UNFINISHED);
    int descriptor = open(lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (descriptor < 0 || flock(descriptor, LOCK_EX) < 0)
        fail_with_errno(lock, "it cannot be locked");
    if (!is_whole(folder, user)) {
        remove_tree(unfinished);
        if (rename(folder, unfinished) == 0) /* something has been removed from it, or changed */
            remove_tree(unfinished);
        if (mkdir(unfinished, 0755) < 0)
            fail_with_errno(unfinished, "it cannot be made");
        extract(unfinished);
        sync_directory(unfinished);
        if (rename(unfinished, folder) < 0)
            fail_with_errno(folder, "it cannot be made");
        sync_directory(place);
    }
    close(descriptor);
    if (!is_whole(folder, user))
        fail(folder, "it is not what was unpacked", "remove it");
}

static _Noreturn void become(const char *folder, char **arguments, char **environment)
{
    char program[PATH_MAX];
    join(program, folder, PROGRAM);
    umask(mask);
    execve(program, arguments, environment);
    fail_with_errno(program, "it cannot be executed");
}

/* Whose the place is that is unpacked to. */
static void choose_place(char *place, uid_t user)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (user == 0)
        strcpy(place, CACHE);
    else if (cache && *cache == '/')
        join(place, cache, "basestation-runner");
    else if (home && *home == '/')
        join(place, home, ".cache/basestation-runner");
    else
        fail(self, "there is no directory to unpack it to", "set XDG_CACHE_HOME, or as root install it");
}

int main(int count, char **arguments, char **environment)
{
    (void)count;
    static const char *const roots[] = {INSTALLED, CACHE};
    char place[PATH_MAX], real[PATH_MAX], folder[PATH_MAX];
    uid_t user = geteuid();
    mask = umask(022);
    open_self();
    for (size_t i = 0; i < sizeof roots / sizeof *roots; ++i) {
        join(folder, roots[i], trailer->name);
        if (is_whole(folder, 0))
            become(folder, arguments, environment);
    }

    if (getauxval(AT_SECURE) || (user != 0 && has_capabilities())) {
        char hint[PATH_MAX + 32];
        snprintf(hint, sizeof hint, "as root: %s install", self);
        fail(self, "with capabilities it runs only from files that root alone can write", hint);
    }
    choose_place(place, user);
    make_directories(place, user == 0 ? 0755 : 0700);
    if (realpath(place, real) == NULL)
        fail_with_errno(place, "it cannot be used");
    join(folder, real, trailer->name);
    strcpy(place, real);
    if (!is_safe_from_the_root(real, user))
        fail(real, "others could change what is unpacked below it", "chmod go-w it, or set XDG_CACHE_HOME to another");
    if (!is_whole(folder, user))
        unpack(place, folder, user);
    become(folder, arguments, environment);
}
