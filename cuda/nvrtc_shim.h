// nvrtc_shim.h: NVRTC loaded by path. No CUDA header is needed: the few functions are declared here.
#ifndef HARNESS_S_NVRTC_SHIM_H
#define HARNESS_S_NVRTC_SHIM_H

#include <stddef.h>

typedef struct hs_nvrtc hs_nvrtc;

// One compilation's result; image and log belong to the caller (free). code is nvrtcResult, 0 when it went well.
typedef struct {
    int code;
    char *image, *log;
    size_t image_bytes;
    int is_ptx;
} hs_nvrtc_result;

// hs_nvrtc_open loads the library; NULL with *why (free) when it cannot be loaded or lacks a function. *file (free) is the
// file that was loaded.
hs_nvrtc *hs_nvrtc_open(const char *path, char **file, char **why);
void hs_nvrtc_close(hs_nvrtc *r);
int hs_nvrtc_version(hs_nvrtc *r, int *major, int *minor);
const char *hs_nvrtc_error(hs_nvrtc *r, int code);

// hs_nvrtc_compile: headers, names and options are packed, one string after another with its NUL: no pointer to a pointer
// crosses from Go.
hs_nvrtc_result hs_nvrtc_compile(hs_nvrtc *r, const char *source, const char *name, int headers, const char *header_texts,
                                 const char *header_names, int options, const char *option_texts);

#endif
