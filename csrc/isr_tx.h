/* Sends a frame's pieces, bytes and file ranges, in as few system calls as will do. */
#ifndef ISR_TX_H
#define ISR_TX_H

#include <stddef.h>
#include <stdint.h>

/* A piece: bytes in memory (fd < 0: `data`), or of a file (`fd` from `offset` on). */
typedef struct {
    const void *data;
    int64_t offset;
    int64_t length;
    int32_t fd;
} isr_tx_part;

/* Where a sender has got to; kept between steps, starts as zeros. */
typedef struct {
    int32_t part;
    int64_t done;
} isr_tx_cursor;

enum {
    ISR_TX_DONE = 0,      /* everything is sent */
    ISR_TX_BLOCKED = 1,   /* the socket is full: wait until it is writable */
    ISR_TX_QUANTUM = 2,   /* `quantum` bytes are sent: let others run */
    ISR_TX_TRUNCATED = 3, /* the file of the current part ends inside its range */
    ISR_TX_NO_SENDFILE = 4 /* the file of the current part cannot be sent by sendfile */
};

/* Sends from the cursor on. Returns a code above, or -errno. `sent` grows by the bytes sent.
 * Never blocks on a non-blocking socket (a cold file's pages are read, though); never raises SIGPIPE. */
int isr_tx_step(int sock, const isr_tx_part *parts, int count, isr_tx_cursor *cursor, int64_t quantum, int64_t *sent);

/* 1 when the first and last page of a file's range are in memory, 0 when not, -1 when that cannot be told. */
int isr_tx_is_warm(int fd, int64_t offset, int64_t length);

#endif
