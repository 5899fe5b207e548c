//go:build ignore

// cubin.cpp: see cubin.h. The layout of the files is that of NVRTC 12.9's output (ELF64, EM_CUDA), of which both versions
// occur: 7 up to sm_90, 8 from sm_100 on.
#include "cubin.h"

#include <cstdint>
#include <cstring>
#include <elf.h>

namespace sim {

const CubinKernel *Image::find(const std::string &name) const {
    for (const CubinKernel &k : kernels)
        if (k.name == name) return &k;
    return nullptr;
}

static constexpr int EM_CUDA_MACHINE = 190;
static constexpr uint32_t FATBIN_WRAPPER = 0x466243b1, FATBIN_HEADER = 0xba55ed50;

// A record of .nv.info: format, attribute, then 2 bytes of value or a length and that many bytes.
static void read_info(const unsigned char *p, size_t n, CubinKernel &k) {
    enum { SIZED = 4, PARAM_BYTES = 0x19, MAX_THREADS = 0x05 };
    for (size_t at = 0; at + 4 <= n;) {
        int format = p[at], attribute = p[at + 1];
        uint16_t value;
        memcpy(&value, p + at + 2, 2);
        if (attribute == PARAM_BYTES && format != SIZED) k.param_bytes = value;
        if (attribute == MAX_THREADS && format == SIZED && value == 12 && at + 16 <= n) {
            uint32_t xyz[3];
            memcpy(xyz, p + at + 4, 12);
            k.max_threads = (int)(xyz[0] * xyz[1] * xyz[2]);
        }
        at += 4 + (format == SIZED ? value : 0);
    }
}

static Image read_elf(const unsigned char *p) {
    Image image;
    Elf64_Ehdr h;
    memcpy(&h, p, sizeof h);
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != EM_CUDA_MACHINE || h.e_shentsize != sizeof(Elf64_Shdr)) return image;
    image.kind = Image::ELF, image.known = true;
    bool newer = h.e_ident[EI_ABIVERSION] >= 8;
    image.sm = newer ? h.e_flags >> 8 & 0xff : h.e_flags & 0xff;
    image.specific = h.e_flags & (newer ? 0x8 : 0x800);
    std::vector<Elf64_Shdr> sections(h.e_shnum);
    memcpy(sections.data(), p + h.e_shoff, sections.size() * sizeof(Elf64_Shdr));
    const char *names = (const char *)p + sections.at(h.e_shstrndx).sh_offset;
    auto suffix = [&](const Elf64_Shdr &s, const char *prefix) -> const char * {
        size_t n = strlen(prefix);
        return strncmp(names + s.sh_name, prefix, n) ? nullptr : names + s.sh_name + n;
    };
    for (const Elf64_Shdr &s : sections)
        if (const char *name = suffix(s, ".text.")) {
            CubinKernel k;
            k.name = name, k.registers = s.sh_info >> 24;
            image.kernels.push_back(k);
        }
    for (const Elf64_Shdr &s : sections)
        for (CubinKernel &k : image.kernels) {
            const char *shared = suffix(s, ".nv.shared."), *info = suffix(s, ".nv.info.");
            if (shared && k.name == shared) k.static_shared = (int)s.sh_size;
            if (info && k.name == info) read_info(p + s.sh_offset, s.sh_size, k);
        }
    return image;
}

static Image read_ptx(const char *text) {
    Image image;
    image.kind = Image::PTX, image.known = true;
    if (const char *target = strstr(text, ".target sm_")) {
        char *end;
        image.sm = (int)strtol(target + 11, &end, 10);
        image.specific = *end == 'a';
    }
    for (const char *at = text; (at = strstr(at, ".entry "));) {
        at += 7;
        CubinKernel k;
        k.name.assign(at, strcspn(at, " (\t\n"));
        image.kernels.push_back(k);
    }
    return image;
}

Image read_image(const void *p) {
    Image image;
    uint32_t magic;
    memcpy(&magic, p, 4);
    if (!memcmp(p, ELFMAG, SELFMAG)) return read_elf((const unsigned char *)p);
    if (!strncmp((const char *)p, "HSSIM", 5)) image.kind = Image::SIMULATOR;
    else if (magic == FATBIN_WRAPPER || magic == FATBIN_HEADER) image.kind = Image::FATBIN;
    else if (!strncmp((const char *)p, "//", 2) || !strncmp((const char *)p, ".version", 8)) return read_ptx((const char *)p);
    return image;
}

} // namespace sim
