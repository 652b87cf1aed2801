#ifndef RING_H
#define RING_H

#include <stdint.h>

#define RING_HEADER 4096

/* Copies as many of `size` bytes as there is room for; wakes a reader that sleeps. Returns how many. */
int64_t ring_write(void *base, uint64_t capacity, const char *data, uint64_t size, int eventfd);
/* Copies at most `size` bytes that are there; wakes a writer that sleeps. Returns how many. */
int64_t ring_read(void *base, uint64_t capacity, char *data, uint64_t size, int eventfd);
/* Announce a sleep; 0 if there is something to do after all. Then wait for the eventfd. */
int ring_reader_may_sleep(void *base);
int ring_writer_may_sleep(void *base, uint64_t capacity);

#endif
