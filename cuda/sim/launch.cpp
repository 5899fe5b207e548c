//go:build ignore

// launch.cpp: modules, functions and launches. A module's image decides which kernels it holds; what runs is the kernel of
// that name that was compiled into the simulator.
#include <cstdio>
#include <cstring>

#include "call.h"
#include "cubin.h"
#include "engine.h"

namespace sim {

struct Module {
    Image image;
    std::vector<struct Function *> functions;
};

struct Function {
    Module *module;
    const hs_sim::Kernel *kernel;
    CubinKernel cubin;
    int max_dynamic; // bytes that a launch may ask for
};

static constexpr int DEFAULT_SHARED = 49152, SYSTEM_SHARED = 1024;

// ---------------------------------------------------------------- modules

static int module_loads(const Image &image) {
    const Machine &m = machine();
    int sm = m.major * 10 + m.minor;
    if (image.kind == Image::INVALID)
        return fail(INVALID_IMAGE, "not a device image: want a cubin, a fat binary, PTX or the simulator's own");
    if (image.kind == Image::ELF && (image.specific ? image.sm != sm : image.sm / 10 != m.major || image.sm % 10 > m.minor))
        return fail(NO_BINARY_FOR_GPU, "a cubin for sm_%d%s does not run on compute %d.%d", image.sm, image.specific ? "a" : "",
            m.major, m.minor);
    if (image.kind == Image::PTX && (image.specific ? image.sm != sm : image.sm > sm))
        return fail(NO_BINARY_FOR_GPU, "PTX for sm_%d%s does not run on compute %d.%d", image.sm, image.specific ? "a" : "",
            m.major, m.minor);
    return SUCCESS;
}

SIM_API int cuModuleLoadData(void **module, const void *image) {
    Call c;
    *module = nullptr;
    if (c.code) return c.code;
    if (!image) return fail(INVALID_VALUE, "cuModuleLoadData: no image");
    Module *m = new Module{read_image(image), {}};
    if (int code = module_loads(m->image)) {
        delete m;
        return code;
    }
    world().handles[m] = {Kind::Module, c.device, delete_as<Module>};
    *module = m;
    return SUCCESS;
}

SIM_API int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values) {
    enum { ERROR_LOG = 5, ERROR_LOG_BYTES = 6 };
    int code = cuModuleLoadData(module, image);
    if (!code) return code;
    char *log = nullptr;
    size_t bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == ERROR_LOG) log = (char *)values[i];
        if (options[i] == ERROR_LOG_BYTES) bytes = (uint32_t)(uintptr_t)values[i];
    }
    if (log && bytes) snprintf(log, bytes, "%s", harness_sim_last_error());
    return code;
}

SIM_API int cuModuleUnload(void *module) {
    Call c;
    if (c.code) return c.code;
    Module *m = lookup<Module>(module, Kind::Module);
    if (!m) return fail(INVALID_HANDLE, "%p is not a module", module);
    if (int code = wait_device(c.lock, c.device)) return code;
    for (Function *f : m->functions) world().handles.erase(f), delete f;
    world().handles.erase(m);
    delete m;
    return SUCCESS;
}

static const hs_sim::Kernel *registered(const char *name) {
    for (const hs_sim::Kernel *k = hs_sim::kernels; k; k = k->next)
        if (!strcmp(k->name, name)) return k;
    return nullptr;
}

SIM_API int cuModuleGetFunction(void **function, void *module, const char *name) {
    Call c;
    *function = nullptr;
    if (c.code) return c.code;
    Module *m = lookup<Module>(module, Kind::Module);
    if (!m || world().handles[m].device != c.device)
        return fail(INVALID_HANDLE, "%p is not a module of device %d", module, c.device->index);
    const hs_sim::Kernel *k = registered(name);
    if (!k) return fail(NOT_FOUND, "no kernel named %s was compiled into the simulator", name);
    const CubinKernel *own = m->image.find(name);
    if (m->image.known && !own) return fail(NOT_FOUND, "the module's image (sm_%d) holds no kernel %s", m->image.sm, name);
    if (own && own->param_bytes >= 0 && own->param_bytes != (int)k->args_size)
        return fail(INVALID_IMAGE, "kernel %s takes %d bytes in the module's image and %zu in the sources: make the modules again", name,
                    own->param_bytes, k->args_size);
    for (Function *f : m->functions)
        if (f->kernel == k) return *function = f, SUCCESS;
    Function *f = new Function{m, k, own ? *own : CubinKernel{}, 0};
    f->max_dynamic = DEFAULT_SHARED - f->cubin.static_shared;
    m->functions.push_back(f);
    world().handles[f] = {Kind::Function, c.device, delete_as<Function>};
    *function = f;
    return SUCCESS;
}

// ---------------------------------------------------------------- functions

static Function *function_of(Call &c, void *handle) {
    Function *f = lookup<Function>(handle, Kind::Function);
    if (!f) c.code = fail(INVALID_HANDLE, "%p is not a function", handle);
    else if (world().handles[f].device != c.device) {
        c.code = fail(INVALID_HANDLE, "kernel %s was loaded on device %d, the current context is of device %d", f->kernel->name,
                      world().handles[f].device->index, c.device->index);
        f = nullptr;
    }
    return f;
}

static int static_shared(const Function *f) {
    hs_sim::Stats s;
    if (f->cubin.registers >= 0) return f->cubin.static_shared;
    return hs_sim::stats(f->kernel->name, &s) ? (int)s.static_bytes : 0; // as far as it has run
}

SIM_API int cuFuncGetAttribute(int *value, int attribute, void *function) {
    Call c;
    if (c.code) return c.code;
    Function *f = function_of(c, function);
    if (!f) return c.code;
    switch (attribute) {
    case 0: *value = f->kernel->max_threads; break;
    case 1: *value = static_shared(f); break;
    case 2: case 3: *value = 0; break; // constant and local memory
    case 4: *value = f->cubin.registers < 0 ? 0 : f->cubin.registers; break;
    case 5: case 6: *value = f->module->image.sm; break;
    case FUNC_MAX_DYNAMIC_SHARED: *value = f->max_dynamic; break;
    default: return fail(INVALID_VALUE, "the simulator does not know function attribute %d", attribute);
    }
    return SUCCESS;
}

SIM_API int cuFuncSetAttribute(void *function, int attribute, int value) {
    Call c;
    if (c.code) return c.code;
    Function *f = function_of(c, function);
    if (!f) return c.code;
    if (attribute != FUNC_MAX_DYNAMIC_SHARED) return fail(INVALID_VALUE, "function attribute %d cannot be set in the simulator", attribute);
    int most = machine().shared_optin - static_shared(f);
    if (value < 0 || value > most)
        return fail(INVALID_VALUE, "kernel %s: %d bytes of dynamic shared memory, at most %d are left", f->kernel->name, value, most);
    f->max_dynamic = value;
    return SUCCESS;
}

SIM_API int cuFuncGetParamInfo(void *function, size_t index, size_t *offset, size_t *bytes) {
    Call c;
    if (c.code) return c.code;
    Function *f = function_of(c, function);
    if (!f) return c.code;
    if (index > 0) return INVALID_VALUE; // kernels take one struct
    *offset = 0, *bytes = f->kernel->args_size;
    return SUCCESS;
}

// ---------------------------------------------------------------- launches

// copy_args takes the parameters in either form. A packed buffer must have exactly the size of the kernel's parameters.
static int copy_args(const Function *f, void **params, void **extra, std::vector<char> *args) {
    size_t want = f->kernel->args_size, given = want;
    const void *from = nullptr;
    if (params && extra) return fail(INVALID_VALUE, "kernel %s: parameters given twice", f->kernel->name);
    if (params) from = params[0];
    for (size_t i = 0; extra && extra[i] != (void *)LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == (void *)LAUNCH_PARAM_BUFFER_POINTER) from = extra[i + 1];
        else if (extra[i] == (void *)LAUNCH_PARAM_BUFFER_SIZE) given = *(size_t *)extra[i + 1];
        else return fail(INVALID_VALUE, "kernel %s: unknown launch option %p", f->kernel->name, extra[i]);
    }
    if (!from) return fail(INVALID_VALUE, "kernel %s: no parameters", f->kernel->name);
    if (given != want) return fail(INVALID_VALUE, "kernel %s: %zu bytes of parameters, it takes %zu", f->kernel->name, given, want);
    args->assign((const char *)from, (const char *)from + want);
    return SUCCESS;
}

static uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
// Registers are given out by eights; 0 where the image does not say.
static int registers(const Function *f) { return (int)round_up(std::max(f->cubin.registers, 0), 8); }

static int check_shape(const Function *f, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned dynamic) {
    const char *name = f->kernel->name;
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535)
        return fail(INVALID_VALUE, "kernel %s: grid %ux%ux%u", name, grid[0], grid[1], grid[2]);
    if (!threads || threads > 1024) return fail(INVALID_VALUE, "kernel %s: %llu threads a block", name, (unsigned long long)threads);
    if (block[1] != 1 || block[2] != 1) return fail(NOT_SUPPORTED, "kernel %s: blocks have one dimension in the simulator", name);
    if (threads > (uint64_t)f->kernel->max_threads)
        return fail(INVALID_VALUE, "kernel %s: %llu threads a block, declared for at most %d", name,
            (unsigned long long)threads, f->kernel->max_threads);
    if (registers(f) * (uint64_t)round_up(threads, 32) > 65536)
        return fail(LAUNCH_OUT_OF_RESOURCES, "kernel %s: %d registers for each of %llu threads, a block has 65536", name,
            registers(f), (unsigned long long)threads);
    if (dynamic > (unsigned)std::max(f->max_dynamic, 0))
        return fail(INVALID_VALUE,
            "kernel %s: %u bytes of dynamic shared memory, allowed are %d (set the function's attribute)", name, dynamic, f->max_dynamic);
    if ((int)dynamic + static_shared(f) > machine().shared_optin)
        return fail(INVALID_VALUE, "kernel %s: %u bytes of dynamic and %d of static shared memory, the device has %d", name,
            dynamic, static_shared(f), machine().shared_optin);
    return SUCCESS;
}

// check_pointers looks at every 8-byte word of the parameters that is an address of device memory: it must be of a live
// block that the device may use. Other words cannot be told from numbers and are left alone.
static std::string check_pointers(Device *d, const std::vector<char> &args) {
    for (size_t at = 0; at + 8 <= args.size(); at += 8) {
        uintptr_t p;
        memcpy(&p, args.data() + at, 8);
        const Block *b = find(p);
        if (!b || !b->device) continue;
        std::string bad = holds(d, p, 1);
        if (!bad.empty()) return "parameter at byte " + std::to_string(at) + ": " + bad;
    }
    return "";
}

// explain_address adds to the engine's message what lies at the address that a kernel could not touch.
static Outcome explain_address(std::string text) {
    static const char mark[] = "illegal address ";
    size_t at = text.find(mark);
    if (at == std::string::npos) return {LAUNCH_FAILED, text};
    std::string what = describe_address(strtoull(text.c_str() + at + strlen(mark), nullptr, 16));
    return {ILLEGAL_ADDRESS, what.empty() ? text : text + " (" + what + ")"};
}

SIM_API int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned dynamic,
                           void *stream, void **params, void **extra) {
    Call c;
    if (c.code) return c.code;
    Function *f = function_of(c, function);
    Stream *s = f ? c.stream(stream) : nullptr;
    if (!s) return c.code;
    if (int code = check_shape(f, {gx, gy, gz}, {bx, by, bz}, dynamic)) return code;
    auto args = std::make_shared<std::vector<char>>();
    if (int code = copy_args(f, params, extra, args.get())) return code;
    std::string bad = check_pointers(c.device, *args);
    if (!bad.empty()) return fail(INVALID_VALUE, "kernel %s: %s", f->kernel->name, bad.c_str());
    const hs_sim::Kernel *k = f->kernel;
    Device *d = c.device;
    Work w;
    w.what = std::string("kernel ") + k->name;
    w.body = [=]() -> Outcome {
        uint64_t seed;
        {
            Lock lock(world().mu);
            std::string bad = check_pointers(d, *args);
            if (!bad.empty()) return {ILLEGAL_ADDRESS, bad};
            seed = draw() | 1;
        }
        const char *error = hs_sim::run_grid(k, gx, gy, gz, bx, dynamic, args->data(), seed);
        return error ? explain_address(error) : Outcome{};
    };
    return enqueue(s, std::move(w));
}

} // namespace sim
