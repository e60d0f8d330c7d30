#include "message.h"

#include "fault.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *next, *words_end;

void end(void)
{
    _exit(1);
}

void begin(struct message *message, const char *kind)
{
    message->size = 0;
    add(message, kind);
}

void add(struct message *message, const char *text)
{
    size_t size = strlen(text) + 1;
    if (size > sizeof message->text - message->size)
        end();
    memcpy(message->text + message->size, text, size);
    message->size += size;
}

void add_number(struct message *message, long number)
{
    char text[24];
    snprintf(text, sizeof text, "%ld", number);
    add(message, text);
}

bool is_full(const struct message *message)
{
    return sizeof message->text - message->size < 2 * PATH_MAX;
}

void send_to_keeper(const struct message *message, int descriptor)
{
    struct iovec content = {.iov_base = (void *)message->text, .iov_len = message->size};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof descriptor)];
    } control = {.header = {
                     .cmsg_len = CMSG_LEN(sizeof descriptor),
                     .cmsg_level = SOL_SOCKET,
                     .cmsg_type = SCM_RIGHTS,
                 }};
    struct msghdr whole = {.msg_iov = &content, .msg_iovlen = 1};
    if (descriptor >= 0) {
        memcpy(CMSG_DATA(&control.header), &descriptor, sizeof descriptor);
        whole.msg_control = &control;
        whole.msg_controllen = sizeof control;
    }
    if (sendmsg(KEEPER, &whole, MSG_NOSIGNAL) < 0)
        end();
}

int receive(int *besides)
{
    int descriptors[2] = {-1, -1};
    char byte;
    struct iovec content = {.iov_base = &byte, .iov_len = sizeof byte};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof descriptors)];
    } control;
    struct msghdr whole = {
        .msg_iov = &content,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };
    ssize_t count;
    do
        count = recvmsg(KEEPER, &whole, MSG_CMSG_CLOEXEC);
    while (count < 0 && errno == EINTR);
    if (count == 0)
        end();
    struct cmsghdr *header = count < 0 ? NULL : CMSG_FIRSTHDR(&whole);
    if (header == NULL || header->cmsg_type != SCM_RIGHTS || (whole.msg_flags & MSG_CTRUNC) != 0) {
        errno = count < 0 ? errno : EMFILE; /* what keeps descriptors from being taken */
        return failed();
    }
    memcpy(descriptors, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    struct stat facts;
    if (fstat(descriptors[0], &facts) != 0)
        return failed();
    size_t size = (size_t)facts.st_size;
    const char *words = mmap(NULL, size, PROT_READ, MAP_PRIVATE, descriptors[0], 0);
    if (words == MAP_FAILED)
        return failed();
    if (words[size - 1] != '\0')
        end();
    close(descriptors[0]);
    next = words;
    words_end = words + size;
    *besides = descriptors[1];
    return 0;
}

bool has_word(void)
{
    return next < words_end;
}

const char *word(void)
{
    if (!has_word())
        end();
    const char *found = next;
    next += strlen(next) + 1;
    return found;
}

unsigned long number(void)
{
    const char *text = word();
    char *rest;
    errno = 0;
    unsigned long found = strtoul(text, &rest, 10);
    if (rest == text || *rest != '\0' || errno != 0)
        end();
    return found;
}
