#ifndef ISR_DEVICE_H
#define ISR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* The first `size` bytes of a file, for reading and writing, shared with the file; NULL with errno set if that fails.
 * The descriptor may be closed: the map takes none of its own. */
uint8_t *isr_map(int fd, size_t size);

void isr_unmap(uint8_t *start, size_t size);

/* Brings all of the file system that holds the file to its device. -1 with errno set: something could not be written
 * since the descriptor was opened, or (ENOSYS) this system has no such call. */
int isr_sync_filesystem(int fd);

#endif
