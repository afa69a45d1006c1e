package storage

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/e2e/disk"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/report"
)

const (
	diskSize   = 128 << 20
	volumeSize = 96 << 20
	// lines is the number of lines of the file.
	lines = 2000
	// enough is the number of lines that must be found on the plain disk. It is less than lines,
	// because lines across two fragments of the file are not found.
	enough = lines * 9 / 10
	// shown is the number of bytes of a disk that the report shows.
	shown = 176
)

// Names of the volumes, the folders where they are mounted, and the name of the file on each.
const (
	firstVolume, secondVolume = "pvc-first", "pvc-second"
	firstAt, secondAt         = "/mnt/first", "/mnt/second"
	plainAt                   = "/mnt/plain"
	fileName                  = "patients.csv"
)

func (d *demo) disk(name string) disk.Disk {
	return disk.Disk{Serial: name, Path: filepath.Join(d.dir, name+".img"), Size: diskSize}
}

// tool returns the arguments of volumetool with the volumes' disks and words.
func (d *demo) tool(words ...string) []string {
	return append([]string{"--disks", d.first.Device(0) + "," + d.second.Device(0)}, words...)
}

// write makes the two volumes and the plain file system, and writes the file to each.
func (d *demo) write(ctx context.Context) error {
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return err
	}

	d.canary = "patient-" + hex.EncodeToString(random)
	for _, words := range [][]string{
		{"provision", firstVolume, fmt.Sprint(volumeSize)},
		{"provision", secondVolume, fmt.Sprint(volumeSize)},
		{"stage", firstVolume, firstAt}, {"stage", secondVolume, secondAt},
	} {
		if _, err := d.machine.Do(ctx, d.tool(words...)...); err != nil {
			return err
		}
	}

	d.say("two volumes are made and mounted: LUKS2 with a sealed record, ext4 inside")
	plain := d.plain.Device(0)
	line := fmt.Sprintf("mkfs.ext4 -q %[1]s && mkdir -p %[2]s && mount %[1]s %[2]s", plain, plainAt)
	for _, at := range []string{plainAt, firstAt, secondAt} {
		line += fmt.Sprintf(" && yes '%s;diagnosis;I10;blood pressure 171/104' | head -%d >%s/%s",
			d.canary, lines, at, fileName)
	}

	out, err := d.machine.Exec(ctx, line+fmt.Sprintf(" && sync && sha256sum <%s/%s", firstAt,
		fileName))
	if err != nil {
		return err
	}

	d.digest = strings.TrimSpace(string(out))
	d.say("the same file of %d lines is written to a plain disk and to both volumes", lines)
	return nil
}

// look reads the raw disks, as their owner can, and adds what it finds to the report.
func (d *demo) look(ctx context.Context) error {
	for _, side := range []struct {
		disk           disk.Disk
		title, verdict string
		at             string
		offset         int64
		leaks          bool
	}{
		{d.plain, "The plain disk", "A reader of the disk can read the file.", plainAt, 0, true},
		{d.first, "The volume's disk, at the place of the same file",
			"Noise: neither names nor lines, and equal lines look different.", firstAt,
			crypt.DataOffset, false},
	} {
		a, err := d.machine.Do(ctx, "place", side.at+"/"+fileName)
		if err != nil {
			return err
		}
		data, err := side.disk.ReadAt(side.offset+a.Place, shown)
		if err != nil {
			return err
		}
		d.report.Sides = append(d.report.Sides, report.Capture{
			Title: side.title, Verdict: side.verdict, Leaks: side.leaks, Canary: []byte(d.canary),
			Frames: []report.Frame{{Summary: fmt.Sprintf("%d bytes of the raw disk from %d", shown,
				side.offset+a.Place), Data: data}},
		})
		d.say("%s, raw, from byte %d:  %s", side.disk.Serial, side.offset+a.Place,
			printable(data[:48]))
	}

	for _, disk := range []disk.Disk{d.plain, d.first, d.second} {
		found, searched, err := disk.Count(d.canary)
		if err != nil {
			return err
		}
		d.say("%s: %d lines of the file found in %d MiB of raw disk", disk.Serial, found,
			searched>>20)
		if disk == d.plain {
			d.result.Gates = append(d.result.Gates, bench.Gate{
				Name: "plain disk: lines of the file found (shows that the search works)",
				Want: fmt.Sprintf("at least %d", enough), Got: fmt.Sprint(found),
				OK: found >= enough})
			continue
		}
		d.result.Gates = append(d.result.Gates,
			bench.Exactly(disk.Serial+" volume's disk: lines of the file found", found, 0, "lines"))
	}

	return nil
}

// printable returns b as text, with a dot for each unprintable byte.
func printable(b []byte) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '.'
		}
		return r
	}, latin(b))
}

// latin returns b as text in Latin-1: each byte is a character.
func latin(b []byte) string {
	runes := make([]rune, len(b))
	for i, c := range b {
		runes[i] = rune(c)
	}
	return string(runes)
}
