package crypt

import (
	"fmt"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// How much of a disk is sampled before it counts as blank. A TiB takes a second, on a rotating disk
// less than a minute.
const (
	// sampleEach is the distance between samples in bytes, within leastSamples and mostSamples.
	sampleEach   = 256 << 20
	leastSamples = 64
	mostSamples  = 4096
)

// CheckBlank refuses with NotEmpty a disk that holds data. Everything before the data area, the
// last MiB, and samples of it every sampleEach bytes must be zero. A disk smaller than size is
// Truncated.
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

// scan passes the disk's 512-byte sectors between from and to to accept, with their offsets. It
// reads in chunks into b.
func scan(d blk.Disk, b []byte, from, to int64, accept func(at int64, sector []byte) error) error {
	for at := from; at < to; at += chunk {
		p := b[:min(chunk, to-at)]
		if err := readFull(d, p, at); err != nil {
			return fmt.Errorf("look through disk: %w", err)
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
