package crypt

import (
	"fmt"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// These constants set how much of a disk is sampled before it counts as blank. Sampling a TiB takes
// about a second, on a rotating disk less than a minute.
const (
	// sampleEach is the distance between samples in bytes. A disk has at least leastSamples and at
	// most mostSamples samples, so the distance may differ.
	sampleEach   = 256 << 20
	leastSamples = 64
	mostSamples  = 4096
)

// CheckBlank returns NotEmpty if the disk holds data. The bytes before the data area, the last MiB,
// and samples of the disk every sampleEach bytes must be zero. It returns Truncated if the disk is
// smaller than size bytes.
func CheckBlank(d blk.Disk, size int64) error {
	have, err := d.Size()
	if err != nil {
		return err
	}
	if have < size {
		return refuse(Truncated, "device", fmt.Sprintf("at least %d bytes", size), "%d", have)
	}
	have &^= SectorSize - 1
	b := blk.Buffer(chunk)
	if err := scan(d, b, 0, min(DataOffset, have), notZero); err != nil {
		return err
	}
	const tail = 1 << 20
	if err := scan(d, b, max(0, have-tail), have, notZero); err != nil {
		return err
	}
	samples := min(max(have/sampleEach, leastSamples), mostSamples)
	for i := range samples {
		at := (have / samples * i) &^ (SectorSize - 1)
		if err := scan(d, b, at, min(at+SectorSize, have), notZero); err != nil {
			return err
		}
	}
	return nil
}

// scan calls accept with the offset and content of each 512-byte sector of the disk in [from, to).
// It stops at the first error of accept. It reads chunks into b.
func scan(d blk.Disk, b []byte, from, to int64, accept func(at int64, sector []byte) error) error {
	for at := from; at < to; at += chunk {
		p := b[:min(chunk, to-at)]
		if err := readFull(d, p, at); err != nil {
			return fmt.Errorf("scan disk: %w", err)
		}
		for i := 0; i < len(p); i += keyslotSector {
			if err := accept(at+int64(i), p[i:i+keyslotSector]); err != nil {
				return err
			}
		}
	}
	return nil
}

func notZero(at int64, sector []byte) error {
	if isZero(sector) {
		return nil
	}
	return refuse(NotEmpty, fmt.Sprintf("disk at %d", at), "zeros", "%s", Describe(sector))
}
