package storage

import (
	"log/slog"
	"slices"
	"time"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/pkg/bench/suite"
)

// Suite is the name of this suite in bench.Judge and the name of the folder of its results.
const Suite = "bench-storage"

// RunConfig chooses the measurements. All fields but Seed and Disks must be set.
type RunConfig struct {
	suite.Choice
	// Sample is the duration of a run of fio in whole seconds.
	Sample time.Duration
	// Room is the size of each side's part of a disk in bytes.
	Room int64
	// Tuning is the tuning of our volumes. cryptsetup gets the same flags.
	Tuning dmcrypt.Tuning
	// Disks are the names of the disks; empty means all.
	Disks []string
	// Dir is the folder for the files of the machine and its disks.
	Dir string
	// Log receives the machine's steps.
	Log *slog.Logger
}

// Check returns an error if the choice is not valid.
func (o RunConfig) Check() error { return benchmark.Check(o.Choice) }

// has reports whether the disk is measured.
func (o *RunConfig) has(disk string) bool {
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
func (o RunConfig) Estimate() time.Duration {
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
