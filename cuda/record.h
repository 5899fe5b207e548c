// record.h: a driver, BLAS and collectives that do nothing but write down what they are asked for, with a device's sizes.
// It is opened in place of the libraries by the path HS_RECORDER.
#ifndef HARNESS_S_RECORD_H
#define HARNESS_S_RECORD_H

#include "api.h"

#define HS_RECORDER "recorder:"

// hs_record_find is the recorder's function of a library's name, NULL where it has none.
void *hs_record_find(const char *symbol);

typedef struct {
    char name[64];
    size_t memory;
    int sms, major, minor, shared_block, shared_sm, l2, clock_khz, memory_clock_khz, bus_bits;
} hs_record_device;

// hs_record_start says what device there is and forgets everything. One recording at a time in a process.
void hs_record_start(const hs_record_device *d);

enum { HS_RECORD_LAUNCH, HS_RECORD_MATMUL, HS_RECORD_FILL, HS_RECORD_COPY, HS_RECORD_TRANSFER, HS_RECORD_COLLECTIVE };

typedef struct {
    int kind;
    char name[64];                     // launch: the kernel; collective: the library's function
    unsigned gx, gy, gz, threads, shared; // launch
    int64_t m, n, k;                   // matmul, as the library is asked: column-major
    int transa, transb, in, out;       // matmul: types are HS_CUDA_R_*
    int add;                           // matmul: beta is not 0
    uint64_t bytes;                    // fill, copy, transfer (host <-> device), collective (a rank's share)
} hs_record_entry;

// hs_record_take moves up to max entries, oldest first, to list and returns their number.
int hs_record_take(hs_record_entry *list, int max);
// hs_record_peak is the most memory that was allocated at one time.
uint64_t hs_record_peak(void);

#endif
