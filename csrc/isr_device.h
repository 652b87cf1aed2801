#ifndef ISR_DEVICE_H
#define ISR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

/* A file's bytes in memory. `lost` is 1 once some of them were gone when they were looked at: somebody has cut the
 * file, or its device fails. They are zeros from then on, and what is written there reaches no file. */
typedef struct isr_mapping {
    uint8_t *start;
    size_t size;
    int lost;
    struct isr_mapping *next;
    struct isr_mapping *next_free;
} isr_mapping;

/* The first `size` bytes of a file, for reading and writing, shared with the file; NULL with errno set if that fails.
 * The descriptor may be closed: the map takes none of its own. */
isr_mapping *isr_map(int fd, size_t size);

void isr_unmap(isr_mapping *mapping);

/* Brings all of the file system that holds the file to its device. -1 with errno set: something could not be written
 * since the descriptor was opened, or (ENOSYS) this system has no such call. */
int isr_sync_filesystem(int fd);

#endif
