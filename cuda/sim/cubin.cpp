//go:build ignore

// cubin.cpp: see cubin.h. The layout of the files is that of NVRTC 12.9's output (ELF64, EM_CUDA), of which both versions
// occur: 7 up to sm_90, 8 from sm_100 on.
#include "cubin.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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

// Records calls see(attribute, bytes, n) for each record of a .nv.info section: a format, an attribute, then two bytes of
// value, or a length and that many bytes.
template <class F> static void records(const unsigned char *p, size_t n, F see) {
    enum { SIZED = 4 };
    for (size_t at = 0; at + 4 <= n;) {
        uint16_t length = 0;
        if (p[at] == SIZED) memcpy(&length, p + at + 2, 2);
        if (at + 4 + length > n) return;
        if (p[at] == SIZED) see(p[at + 1], p + at + 4, (size_t)length);
        else see(p[at + 1], p + at + 2, (size_t)2);
        at += 4 + length;
    }
}

template <class T> static T load(const unsigned char *p, int i = 0) {
    T v;
    memcpy(&v, p + i * sizeof(T), sizeof(T));
    return v;
}

static void read_kernel_info(const unsigned char *p, size_t n, CubinKernel &k) {
    enum { MAX_THREADS = 0x05, PARAM_INFO = 0x17 };
    records(p, n, [&](int attribute, const unsigned char *value, size_t bytes) {
        if (attribute == PARAM_INFO && bytes == 12) k.param_bytes = load<uint32_t>(value, 2) >> 18; // kernels take one struct
        if (attribute == MAX_THREADS && bytes == 12)
            k.max_threads = (int)(load<uint32_t>(value) * load<uint32_t>(value, 1) * load<uint32_t>(value, 2));
    });
}

// Elf is the sections of a cubin.
struct Elf {
    const unsigned char *p;
    std::vector<Elf64_Shdr> sections;
    const char *names;
    const char *name(const Elf64_Shdr &s) const { return names + s.sh_name; }
    const char *suffix(const Elf64_Shdr &s, const char *prefix) const {
        size_t n = strlen(prefix);
        return strncmp(name(s), prefix, n) ? nullptr : name(s) + n;
    }
    // symbol gives the name of a symbol by its number.
    std::string symbol(uint32_t number) const {
        for (const Elf64_Shdr &s : sections) {
            if (s.sh_type != SHT_SYMTAB || number >= s.sh_size / sizeof(Elf64_Sym)) continue;
            Elf64_Sym sym = load<Elf64_Sym>(p + s.sh_offset, number);
            return (const char *)p + sections.at(s.sh_link).sh_offset + sym.st_name;
        }
        return "";
    }
};

static void read_registers(const Elf &elf, const Elf64_Shdr &info, std::vector<CubinKernel> &kernels) {
    enum { REGISTERS = 0x2f };
    records(elf.p + info.sh_offset, info.sh_size, [&](int attribute, const unsigned char *value, size_t bytes) {
        if (attribute != REGISTERS || bytes != 8) return;
        std::string name = elf.symbol(load<uint32_t>(value));
        for (CubinKernel &k : kernels)
            if (k.name == name) k.registers = (int)load<uint32_t>(value, 1);
    });
}

// From sm_90 on the sections count the 1 KiB that the system keeps of each block, which is not the kernel's.
static void read_kernels(const Elf &elf, Image &image) {
    int reserved = image.sm >= 90 ? 1024 : 0;
    for (const Elf64_Shdr &s : elf.sections)
        if (const char *name = elf.suffix(s, ".text.")) image.kernels.push_back({name, -1, 0, -1, -1});
    for (const Elf64_Shdr &s : elf.sections) {
        if (!strcmp(elf.name(s), ".nv.info")) read_registers(elf, s, image.kernels);
        const char *shared = elf.suffix(s, ".nv.shared."), *info = elf.suffix(s, ".nv.info.");
        for (CubinKernel &k : image.kernels) {
            if (shared && k.name == shared) k.static_shared = std::max((int)s.sh_size - reserved, 0);
            if (info && k.name == info) read_kernel_info(elf.p + s.sh_offset, s.sh_size, k);
        }
    }
}

static Image read_elf(const unsigned char *p) {
    Image image;
    Elf64_Ehdr h = load<Elf64_Ehdr>(p);
    if (h.e_ident[EI_CLASS] != ELFCLASS64 || h.e_machine != EM_CUDA_MACHINE || h.e_shentsize != sizeof(Elf64_Shdr)) return image;
    image.kind = Image::ELF, image.known = true;
    bool newer = h.e_ident[EI_ABIVERSION] >= 8;
    image.sm = newer ? h.e_flags >> 8 & 0xff : h.e_flags & 0xff;
    image.specific = h.e_flags & (newer ? 0x8 : 0x800);
    Elf elf{p, std::vector<Elf64_Shdr>(h.e_shnum), nullptr};
    memcpy(elf.sections.data(), p + h.e_shoff, elf.sections.size() * sizeof(Elf64_Shdr));
    elf.names = (const char *)p + elf.sections.at(h.e_shstrndx).sh_offset;
    read_kernels(elf, image);
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
