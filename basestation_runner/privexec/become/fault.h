/* How something went wrong: set by whoever noticed, told to the keeper by main.c. */

#ifndef FAULT_H
#define FAULT_H

enum kind {
    FAILED,  /* a system call, with errno */
    REFUSED, /* a rule forbids it, now and later */
    BUSY,    /* a rule forbids it now */
    NOT_US   /* this process is not what it must be: it must run nothing */
};

struct fault {
    enum kind kind;
    int number; /* errno */
    char text[4400];
};

extern struct fault fault;

/* Each notes a fault and returns -1. */
int failed(void);
int refused(const char *format, ...) __attribute__((format(printf, 1, 2)));
int busy(const char *text);
int not_us(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
