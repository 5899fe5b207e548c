package kernels

import (
	"strings"
	"testing"
)

// TestCPUSaysWhatToSet: what cpu cannot do is refused with the keys that mend it.
func TestCPUSaysWhatToSet(t *testing.T) {
	for _, c := range []struct {
		o    DeviceOptions
		want []string
	}{
		{DeviceOptions{Name: "cpu", DType: BF16, Devices: 1}, []string{"fp32, not bf16", "model.dtype=fp32", "backend=cuda"}},
		{DeviceOptions{Name: "cpu", Devices: 4}, []string{"one device, not 4", "devices=1", "backend=cuda"}},
	} {
		_, err := Open(1, c.o)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v; want %q in it", c.o, err, want)
			}
		}
	}
}
