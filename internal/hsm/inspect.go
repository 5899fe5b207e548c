package hsm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Entry is a kernel as an image describes it.
type Entry struct {
	Params     int // bytes of all parameters
	MaxThreads int // a block; 0 where the image sets no bound
	Registers  int // 0 in PTX
	Constant   int // bytes of its constant banks; 0 in PTX
}

// Inspect lists the kernels of an image by name.
func Inspect(i Image) (map[string]Entry, error) {
	if strings.HasPrefix(i.Arch, "compute_") {
		return inspectPTX(i.Data)
	}
	entries, err := inspectCUBIN(i.Data)
	if err != nil {
		return nil, fmt.Errorf("hsm: %s: %w", i.Arch, err)
	}
	return entries, nil
}

// Attributes of a CUBIN's .nv.info sections, as cuobjdump names them: a byte of format, a byte of attribute, two bytes that
// are the value or (sized) the length of the value that follows.
const (
	formatSized = 4

	attrMaxThreads = 0x05 // EIATTR_MAX_THREADS: x, y, z
	attrParamInfo  = 0x17 // EIATTR_KPARAM_INFO: index, ordinal and offset, size in the top 14 bits of the third word
	attrParamSize  = 0x19 // EIATTR_CBANK_PARAM_SIZE
	attrRegisters  = 0x2f // EIATTR_REGCOUNT: symbol, count; in the section of the whole module
)

func inspectCUBIN(data []byte) (map[string]Entry, error) {
	const version = 0x14 // of e_version in the header: NVIDIA's is not 1, which debug/elf insists on
	if len(data) < version+4 {
		return nil, fmt.Errorf("not an ELF file: %d bytes", len(data))
	}
	data = bytes.Clone(data)
	binary.LittleEndian.PutUint32(data[version:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	entries := map[string]Entry{}
	for _, s := range symbols {
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_BIND(s.Info) == elf.STB_GLOBAL && f.Section(".nv.info."+s.Name) != nil {
			entries[s.Name] = Entry{}
		}
	}
	for name, e := range entries {
		if err := e.read(f, name); err != nil {
			return nil, fmt.Errorf("kernel %s: %w", name, err)
		}
		entries[name] = e
	}
	info := f.Section(".nv.info")
	if info == nil {
		return nil, fmt.Errorf("no section .nv.info")
	}
	return entries, eachAttribute(info, func(attr byte, _ int, v []byte) {
		if attr != attrRegisters || len(v) < 8 {
			return
		}
		symbol := int(binary.LittleEndian.Uint32(v)) - 1 // Symbols leaves the null symbol out
		if symbol < 0 || symbol >= len(symbols) {
			return
		}
		if e, ok := entries[symbols[symbol].Name]; ok {
			e.Registers = int(binary.LittleEndian.Uint32(v[4:]))
			entries[symbols[symbol].Name] = e
		}
	})
}

// read fills in what the kernel's own sections say.
func (e *Entry) read(f *elf.File, name string) error {
	for _, s := range f.Sections {
		if strings.HasPrefix(s.Name, ".nv.constant") && strings.HasSuffix(s.Name, "."+name) {
			e.Constant += int(s.Size)
		}
	}
	first, end := -1, 0 // of the parameters; first is not 0 where one is aligned to more than the place of all
	err := eachAttribute(f.Section(".nv.info."+name), func(attr byte, value int, v []byte) {
		switch {
		case attr == attrParamSize:
			e.Params = value
		case attr == attrParamInfo && len(v) >= 12:
			offset := int(binary.LittleEndian.Uint16(v[6:]))
			if first < 0 || offset < first {
				first = offset
			}
			end = max(end, offset+int(binary.LittleEndian.Uint32(v[8:])>>18))
		case attr == attrMaxThreads && len(v) >= 12:
			e.MaxThreads = 1
			for i := range 3 {
				e.MaxThreads *= int(binary.LittleEndian.Uint32(v[4*i:]))
			}
		}
	})
	if err == nil && end > e.Params {
		err = fmt.Errorf("parameters of %d bytes in %d bytes", end, e.Params)
	}
	if first > 0 {
		e.Params = end - first
	}
	return err
}

// eachAttribute calls f for every attribute: value where it has no bytes of its own.
func eachAttribute(s *elf.Section, f func(attr byte, value int, v []byte)) error {
	data, err := s.Data()
	if err != nil {
		return err
	}
	for len(data) >= 4 {
		format, attr, value := data[0], data[1], int(binary.LittleEndian.Uint16(data[2:]))
		data = data[4:]
		var v []byte
		if format == formatSized {
			if value > len(data) {
				return fmt.Errorf("section %s: attribute %#x ends behind the section", s.Name, attr)
			}
			v, data = data[:value], data[value:]
		}
		f(attr, value, v)
	}
	return nil
}

var (
	ptxEntry   = regexp.MustCompile(`(?s)\.visible \.entry (\w+)\((.*?)\)\s*(\.maxntid (\d+)(?:, (\d+))?(?:, (\d+))?)?`)
	ptxParam   = regexp.MustCompile(`\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+\w+(?:\[(\d+)\])?`)
	ptxVersion = regexp.MustCompile(`(?m)^\.version \d+\.\d+`)
)

func inspectPTX(data []byte) (map[string]Entry, error) {
	if !ptxVersion.Match(data) {
		return nil, fmt.Errorf("hsm: no PTX: starts with %.20q", data)
	}
	entries := map[string]Entry{}
	for _, m := range ptxEntry.FindAllSubmatch(data, -1) {
		var e Entry
		for _, p := range ptxParam.FindAllSubmatch(m[2], -1) {
			bits, count := number(p[2]), 1
			if len(p[3]) > 0 {
				count = number(p[3])
			}
			e.Params += bits / 8 * count
		}
		if len(m[3]) > 0 {
			e.MaxThreads = number(m[4]) * max(1, number(m[5])) * max(1, number(m[6]))
		}
		entries[string(m[1])] = e
	}
	return entries, nil
}

// number of digits that an expression matched; 0 for none.
func number(digits []byte) int {
	n, _ := strconv.Atoi(string(digits))
	return n
}
