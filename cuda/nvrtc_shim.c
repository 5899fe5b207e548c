#define _GNU_SOURCE
#include "nvrtc_shim.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef struct nvrtc_program *program;

struct hs_nvrtc {
    void *lib;
    int (*Version)(int *, int *);
    const char *(*GetErrorString)(int);
    int (*CreateProgram)(program *, const char *, const char *, int, const char *const *, const char *const *);
    int (*DestroyProgram)(program *);
    int (*CompileProgram)(program, int, const char *const *);
    int (*GetProgramLogSize)(program, size_t *);
    int (*GetProgramLog)(program, char *);
    int (*GetCUBINSize)(program, size_t *);
    int (*GetCUBIN)(program, char *);
    int (*GetPTXSize)(program, size_t *);
    int (*GetPTX)(program, char *);
};

static void say(char **why, const char *text) { *why = strdup(text ? text : "no reason given"); }

hs_nvrtc *hs_nvrtc_open(const char *path, char **file, char **why) {
    hs_nvrtc *r = calloc(1, sizeof *r);
    if (!r) return say(why, "out of memory"), NULL;
    if (!(r->lib = dlopen(path, RTLD_NOW | RTLD_LOCAL))) return say(why, dlerror()), free(r), NULL;
#define LOAD(f)                                                                                        \
    if (!(*(void **)&r->f = dlsym(r->lib, "nvrtc" #f)))                                                \
        return say(why, "function nvrtc" #f " is missing: older than CUDA 11.2"), hs_nvrtc_close(r), NULL
    LOAD(Version); LOAD(GetErrorString); LOAD(CreateProgram); LOAD(DestroyProgram); LOAD(CompileProgram);
    LOAD(GetProgramLogSize); LOAD(GetProgramLog); LOAD(GetCUBINSize); LOAD(GetCUBIN); LOAD(GetPTXSize); LOAD(GetPTX);
    Dl_info info;
    *file = strdup(dladdr((void *)r->Version, &info) && info.dli_fname ? info.dli_fname : path);
    return r;
}

void hs_nvrtc_close(hs_nvrtc *r) {
    dlclose(r->lib);
    free(r);
}

int hs_nvrtc_version(hs_nvrtc *r, int *major, int *minor) { return r->Version(major, minor); }

const char *hs_nvrtc_error(hs_nvrtc *r, int code) { return r->GetErrorString(code); }

// unpack points into a packed list of n strings; NULL when memory is short. The array has n+1 places so that n = 0 works.
static const char **unpack(const char *packed, int n) {
    const char **list = calloc((size_t)n + 1, sizeof *list);
    for (int i = 0; list && i < n; i++, packed += strlen(packed) + 1) list[i] = packed;
    return list;
}

// take fetches the log, and after a good compilation the image: CUBIN for a real architecture, PTX for a virtual one.
static void take(hs_nvrtc *r, program p, hs_nvrtc_result *out) {
    size_t n = 0;
    if (r->GetProgramLogSize(p, &n) == 0 && (out->log = calloc(1, n + 1))) r->GetProgramLog(p, out->log);
    if (out->code) return;
    if (r->GetCUBINSize(p, &out->image_bytes) || out->image_bytes == 0) {
        out->is_ptx = 1;
        if ((out->code = r->GetPTXSize(p, &out->image_bytes))) return;
    }
    if (!(out->image = malloc(out->image_bytes))) {
        out->code = 1; // NVRTC_ERROR_OUT_OF_MEMORY
        return;
    }
    out->code = out->is_ptx ? r->GetPTX(p, out->image) : r->GetCUBIN(p, out->image);
}

hs_nvrtc_result hs_nvrtc_compile(hs_nvrtc *r, const char *source, const char *name, int headers, const char *header_texts,
                                 const char *header_names, int options, const char *option_texts) {
    hs_nvrtc_result out = {0};
    const char **texts = unpack(header_texts, headers), **names = unpack(header_names, headers), **opts = unpack(option_texts, options);
    program p = NULL;
    if (!texts || !names || !opts) out.code = 1;
    else out.code = r->CreateProgram(&p, source, name, headers, texts, names);
    if (!out.code) {
        out.code = r->CompileProgram(p, options, opts);
        take(r, p, &out);
        r->DestroyProgram(&p);
    }
    free(texts), free(names), free(opts);
    return out;
}
