package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"harness-s/model"
)

// sizes are the published text models that the device benchmarks are about: every fourth layer is full attention.
var sizes = map[string]struct {
	hidden, mlp, layers, hq, hk, valueHeads int
	tied                                    bool
}{
	"0.8b": {1024, 3584, 24, 8, 2, 16, true},
	"4b":   {2560, 9216, 32, 16, 4, 32, true},
	"9b":   {4096, 12288, 32, 16, 4, 32, false},
}

// tiny is for rehearsals of a device benchmark on the simulator.
const tiny = "tiny"

// Size is the shape of a Qwen3.5 model by its size: 0.8b, 4b, 9b; or tiny.
func Size(name string) (model.Config, error) {
	if name == tiny {
		cfg := Shape()
		cfg.Hidden, cfg.MLP, cfg.Vocab, cfg.LayerTypes = 32, 64, 352, cfg.LayerTypes[:4]
		cfg.Hq, cfg.Hk, cfg.GDNHk, cfg.GDNHv, cfg.Dk, cfg.Dv = 2, 1, 1, 2, 16, 16
		return cfg, nil
	}
	s, ok := sizes[name]
	if !ok {
		return model.Config{}, fmt.Errorf("bench: no size %q: want %s or %s", name, strings.Join(slices.Sorted(maps.Keys(sizes)), ", "), tiny)
	}
	cfg := model.Config{
		Vocab: 248320, Hidden: s.hidden, MLP: s.mlp,
		Hq: s.hq, Hk: s.hk, D: 256, RotaryFactor: 0.25, RopeTheta: 1e7,
		GDNHk: 16, GDNHv: s.valueHeads, Dk: 128, Dv: 128, K: 4,
		Eps: 1e-6, Tied: s.tied, MaxPosition: 262144,
	}
	for i := range s.layers {
		kind := model.LinearAttention
		if i%4 == 3 {
			kind = model.FullAttention
		}
		cfg.LayerTypes = append(cfg.LayerTypes, kind)
	}
	return cfg, nil
}
