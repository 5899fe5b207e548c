// Device images as the compiler makes them. FILE is one, CC the simulated capability; KERNELS are names that it holds.
#include "check.h"
#include <fstream>
#include <iterator>
#include <sstream>

static std::string required(const char *name) {
    const char *s = getenv(name);
    NEED(s != nullptr);
    return s;
}

static std::string image() {
    std::ifstream f(required("FILE"), std::ios::binary);
    NEED(f.good());
    return std::string(std::istreambuf_iterator<char>(f), {}) + '\0';
}

// Prints registers, static shared memory, threads and parameter bytes of each kernel.
TEST(image_fits) {
    Gpu g;
    Handle module, absent;
    OK(cuModuleLoadData(&module, image().data()));
    std::istringstream names(required("KERNELS"));
    for (std::string name; names >> name;) {
        Handle f;
        OK(cuModuleGetFunction(&f, module, name.c_str()));
        int threads = 0, shared = 0, registers = 0;
        size_t offset, bytes;
        OK(cuFuncGetAttribute(&threads, 0, f));
        OK(cuFuncGetAttribute(&shared, 1, f));
        OK(cuFuncGetAttribute(&registers, 4, f));
        OK(cuFuncGetParamInfo(f, 0, &offset, &bytes));
        printf("%s %d %d %d %zu\n", name.c_str(), registers, shared, threads, bytes);
    }
    CODE(500, cuModuleGetFunction(&absent, module, "line")); // not in this image
}

TEST(image_is_for_another_device) {
    Gpu g;
    Handle module;
    CODE(209, cuModuleLoadData(&module, image().data()));
}
