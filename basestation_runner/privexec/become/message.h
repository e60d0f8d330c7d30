/* What keeper and child say to each other: strings, each with a NUL at its end. */

#ifndef MESSAGE_H
#define MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#define KEEPER 3 /* the descriptor of the link to the keeper */

/* A message to the keeper. */
struct message {
    size_t size;
    char text[1 << 16];
};

void begin(struct message *message, const char *kind);

/* Add a string. What there is no room for ends this process: whoever adds much looks at `is_full` in between. */
void add(struct message *message, const char *text);
void add_number(struct message *message, long number);

/* Whether there may be no room for another path. */
bool is_full(const struct message *message);

/* Send it, with a descriptor unless that is -1. Does not return when the keeper is gone. */
void send_to_keeper(const struct message *message, int descriptor);

/* Wait for the keeper's next message: one byte, with a file of strings and sometimes a second descriptor, which is `besides`
   then, else -1. Returns -1, and notes a fault, when it cannot be taken. Does not return when the keeper is gone, or has
   let go. */
int receive(int *besides);

/* The strings of the keeper's last message, one after the other. A message that ends too early ends this process. */
bool has_word(void);
const char *word(void);
unsigned long number(void);

/* End this process, which has executed nothing. */
_Noreturn void end(void);

#endif
