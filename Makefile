# harness-s: two commands do it all: `make train` and `make test`.
#
#   make train [CONFIG=recipes/quickstart.yaml] [RUN=runs/name] [RESUME=1] [SET="a.b=c d.e=f"]
#   make test         every test, under 10 minutes on 2 cores
#   make test-long    races, sanitizers, fuzzing, crash soaks
#   make lint         formatting, vet, static checks, import rules
#   make build        bin/harness-s
#   make compare [CONFIG=recipes/compare.yaml] [RUN=runs/name]   the paper's controls side by side (docs/compare.md); goes on where it stopped
#   make policy       makes the embedded policy again (recipes/policies)
#   make bench        kernels, training step, decoding, serving
#   make modules      compiles the device kernels that changed (kernels/cu -> kernels/modules)
#   make gpu-check    everything that only a GPU can show, at most 12 minutes; GPU_CHECK_BACKEND=sim rehearses it
#                     (make gpu-check-bundle, then bin/gpu-check/run where Go is missing)

SHELL  := /bin/bash
CONFIG ?= recipes/quickstart.yaml
RUN    ?=
RESUME ?=
SET    ?=
GO     ?= go
GPU_CHECK_BACKEND ?= cuda
GPU_CHECK_OUT     ?=
BIN    := bin/harness-s
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

export CGO_ENABLED := 1
# go-nvml binds functions that NVIDIA marks deprecated: hundreds of warnings that say nothing about this code
export CGO_CFLAGS := -O2 -g -Wno-deprecated-declarations

.PHONY: build train compare test test-long lint policy bench modules gpu-check gpu-check-bundle tools clean

tools:
	@command -v $(GO) >/dev/null || { echo "make: Go is missing: install Go $$(awk '/^go /{print $$2}' go.mod) or newer and put it on PATH" >&2; exit 1; }
	@command -v $${CC:-gcc} >/dev/null || { echo "make: a C compiler is missing: apt-get install gcc" >&2; exit 1; }

build: tools
	@mkdir -p bin
	$(GO) build -trimpath -o $(BIN) ./cmd/harness-s

train: build
	$(BIN) train $(CONFIG) $(if $(RUN),--run $(RUN)) $(if $(RESUME),--resume) $(foreach s,$(SET),--set $(s))

compare: build
	$(BIN) compare $(if $(filter command\ line environment,$(origin CONFIG)),$(CONFIG),recipes/compare.yaml) $(if $(RUN),--run $(RUN)) $(foreach s,$(SET),--set $(s))

test: tools
	$(GO) test -timeout 9m ./...

lint: tools
	@bad=$$(gofmt -l . ); [ -z "$$bad" ] || { echo "gofmt -w these:" >&2; echo "$$bad" >&2; exit 1; }
	$(GO) vet ./...
	$(GO) test ./internal/lint
	$(GO) run $(STATICCHECK) ./...

test-long: tools
	bash internal/testlong.sh

# Made beside the shipped one and put in its place only when whole.
policy: build
	rm -rf .cache/policy && mkdir -p .cache
	$(BIN) warmstart recipes/policies/sql.yaml --out .cache/policy
	rm -rf recipes/policies/sql && mv .cache/policy recipes/policies/sql

bench: build
	$(BIN) bench kernels
	$(BIN) bench step
	$(BIN) bench decode
	$(BIN) bench serve

# Needs python3 with pip once, for NVRTC's wheel; or HARNESS_S_NVRTC=path of libnvrtc.so.12 (12.9).
modules: tools
	$(GO) run ./internal/makemodules

gpu-check-bundle: tools
	@GO=$(GO) bash internal/gpucheck/bundle.sh

gpu-check: gpu-check-bundle
	GPU_CHECK_BACKEND=$(GPU_CHECK_BACKEND) bin/gpu-check/run $(GPU_CHECK_OUT)

clean:
	rm -rf bin runs .cache
