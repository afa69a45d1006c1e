package load

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MapsMiB returns the kernel's memory of all BPF maps that this process has open, in MiB: memlock
// in /proc/self/fdinfo (bpf_map_show_fdinfo in kernel/bpf/syscall.c).
func MapsMiB() (float64, error) {
	files, err := filepath.Glob("/proc/self/fdinfo/*")
	if err != nil {
		return 0, err
	}
	byMap := map[string]float64{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the descriptor of Glob
		}
		if err != nil {
			return 0, err
		}
		if !bytes.Contains(text, []byte("map_type:")) {
			continue
		}
		id, size, err := mapOf(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		byMap[id] = size
	}

	sum := 0.0
	for _, size := range byMap {
		sum += size
	}
	return sum / (1 << 20), nil
}

// mapOf returns the number and the memory of a map, from the fdinfo of its descriptor.
func mapOf(text string) (id string, size float64, err error) {
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "map_id":
			id = value
		case "memlock":
			size, err = strconv.ParseFloat(value, 64)
		}
	}
	if id == "" && err == nil {
		err = errors.New("no map_id")
	}
	return id, size, err
}
