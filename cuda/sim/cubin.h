// cubin.h: what the simulator reads from a real device image, so that the shipped modules are checked where no device is:
// that they fit the device, hold the kernels asked for, and take the parameters that the sources now have.
#pragma once

#include <string>
#include <vector>

namespace sim {

struct CubinKernel {
    std::string name;
    int registers = -1, static_shared = 0, param_bytes = -1, max_threads = -1; // -1: the image does not say
};

// Image is a module's image. known is false where only its kind could be told (fat binaries), so that nothing is checked.
struct Image {
    enum Kind { INVALID, SIMULATOR, ELF, FATBIN, PTX } kind = INVALID;
    bool known = false;
    int sm = 0;            // architecture, 80, 90, ...
    bool specific = false; // for that architecture alone (90a)
    std::vector<CubinKernel> kernels;
    const CubinKernel *find(const std::string &name) const;
};

Image read_image(const void *image);

} // namespace sim
