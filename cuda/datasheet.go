package cuda

import "strings"

// DataSheet is what a device's maker says of it.
type DataSheet struct {
	DeviceInfo
	Key       string  // short name, for example h200
	Arch      string  // of the images that it runs
	BF16      float64 // dense FLOP/s with fp32 sums
	Bandwidth float64 // bytes/s
}

// reservedShared is the bytes of shared memory a block that the driver keeps.
const reservedShared = 1024

// dataSheet fills in what devices of a compute capability have in common.
func dataSheet(key, name, arch string, cc, sms int, memoryGB, tflops, gbs float64, l2MB int) DataSheet {
	d := DataSheet{Key: key, Arch: arch, BF16: tflops * 1e12, Bandwidth: gbs * 1e9}
	d.DeviceInfo = DeviceInfo{Name: name, Memory: int64(memoryGB * 1e9), SMs: sms, Major: cc / 10, Minor: cc % 10, L2: l2MB << 20}
	switch cc {
	case 80:
		d.SharedPerSM = 164 << 10
	case 90, 100:
		d.SharedPerSM = 228 << 10
	case 89, 120:
		d.SharedPerSM = 100 << 10
	}
	d.SharedOptin = d.SharedPerSM - reservedShared
	return d
}

// DataSheets are those of the devices that predictions and utilisation are known for.
func DataSheets() []DataSheet {
	return []DataSheet{
		dataSheet("a100", "A100 SXM 80GB", "sm_80", 80, 108, 80, 312, 2039, 40),
		dataSheet("h100", "H100 SXM", "sm_90a", 90, 132, 80, 989, 3350, 50),
		dataSheet("h200", "H200 SXM", "sm_90a", 90, 132, 141, 989, 4800, 50),
		dataSheet("b200", "B200", "sm_100a", 100, 148, 180, 2250, 8000, 126),
		dataSheet("l40s", "L40S", "sm_80", 89, 142, 48, 362, 864, 96),
		dataSheet("rtx4090", "RTX 4090", "sm_80", 89, 128, 24, 165, 1008, 72),
		dataSheet("rtx5090", "RTX 5090", "sm_120", 120, 170, 32, 210, 1792, 96),
	}
}

// DataSheetOf finds a device's data sheet by the name that its driver gives, for example "NVIDIA H200".
func DataSheetOf(info DeviceInfo) (DataSheet, bool) {
	name := strings.ReplaceAll(strings.ToLower(info.Name), " ", "")
	for _, d := range DataSheets() {
		if strings.Contains(name, d.Key) && d.Major == info.Major {
			return d, true
		}
	}
	return DataSheet{}, false
}
