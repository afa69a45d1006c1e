package scale

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processor returns the CPU time of this process.
func processor() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0 // getrusage(2) fails only for a bad pointer
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// peak returns the peak of this process's resident memory (VmHWM), in MiB.
func peak() (float64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, is := strings.CutPrefix(line, "VmHWM:"); is {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}

// memoryOfMaps returns the kernel's memory of all BPF maps that this process has open, in MiB.
func memoryOfMaps() (float64, error) {
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
