package storage

import (
	"log/slog"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/pkg/bench"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in bench.Judge and the name of the folder of its results.
const Suite = "bench-storage"

// Options choose the measurements. Dir and Root must be set; other zero values mean the defaults.
// The default of Parts is all parts.
type Options struct {
	suite.Choice
	// Sample is the duration of a run of fio in whole seconds; 0 means 3 s.
	Sample time.Duration
	// Room is the size of each side's part of a disk in bytes; 0 means 1 GiB.
	Room int64
	// Tuning is the tuning of our volumes. cryptsetup gets the same flags.
	Tuning dmcrypt.Tuning
	// Disks are the names of the disks; empty means all.
	Disks []string
	// Dir is the folder for the files of the machine and its disks.
	Dir string
	// Log receives the machine's steps; nil drops them.
	Log *slog.Logger
}

func (o *Options) setDefaults() {
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Seed == 0 {
		o.Seed = bench.NewSeed()
	}
	if len(o.Parts) == 0 {
		o.Parts = Parts()
	}
	if o.Sample == 0 {
		o.Sample = 3 * time.Second
	}
	if o.Room == 0 {
		o.Room = 1 << 30
	}
	if o.Tuning == "" {
		o.Tuning = dmcrypt.Throughput
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
}

// Check returns an error if the choice is not valid.
func (o Options) Check() error { return benchmark.Check(o.Choice) }

// has reports whether the disk is measured.
func (o *Options) has(disk string) bool {
	return len(o.Disks) == 0 || slices.Contains(o.Disks, disk)
}

// Names returns the names of all disks.
func Names() []string {
	var names []string
	for _, l := range limits {
		names = append(names, l.name)
	}
	return names
}

const (
	// overhead is the time of a run of fio besides its sample, on an emulated machine.
	overhead = 4 * time.Second
	// fillRate is the write rate of an emulated disk in bytes per second.
	fillRate = 100 * mib
	// stageRound is the duration of a round of staging: both sides, new and existing volumes.
	stageRound = 40 * time.Second
)

// Estimate returns the approximate duration of the measurements, without the machine's start.
func (o Options) Estimate() time.Duration {
	o.setDefaults()
	var sum, filling time.Duration
	for _, l := range limits {
		for _, t := range tasks() {
			if o.has(l.name) && (t.everywhere || l.name == free) {
				sum += sides * time.Duration(t.turns(l.name)) * (o.Sample + overhead)
			}
		}
	}
	if o.has(free) {
		filling = time.Duration(sides*o.Room/fillRate) * time.Second
	}
	return filling + time.Duration(o.Rounds)*(sum+stageRound)
}
