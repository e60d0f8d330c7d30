/* Included before tree.c. */
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>
long hooked_syscall(long number, long first, const char *path, void *how, size_t size);
char *hooked_realpath(const char *path, char *resolved);
#define syscall(number, first, path, how, size) hooked_syscall(number, first, path, how, size)
#define realpath hooked_realpath
