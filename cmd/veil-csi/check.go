package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// Values of --store. A folder follows storeFile.
const (
	storeKubernetes = "kubernetes"
	storeFile       = "file:"
)

// Values of --latency-tuning.
const (
	tuningAuto = "auto"
	tuningOn   = "on"
	tuningOff  = "off"
)

// maxReserve is the largest share of a file system that may be kept free, in percent.
const maxReserve = 90

// check returns an error if a flag is missing, invalid or contradicts another. The error says what
// to write instead.
func (o *options) check() error {
	dir, isFile := strings.CutPrefix(o.store, storeFile)
	switch {
	case o.node == "":
		return errors.New("--node NAME is missing: give the name of this node in Kubernetes")
	case !isFile && o.store != storeKubernetes:
		return fmt.Errorf("--store %q: want kubernetes or file:DIR", o.store)
	case isFile && (dir == "" || o.cluster == ""):
		return errors.New("--store file:DIR needs a folder, and the flag --cluster ID")
	case !isFile && o.cluster != "":
		return errors.New("--cluster is for --store file:DIR: with Kubernetes it is the uid of " +
			"the namespace kube-system")
	case o.files == "" && o.disks == "":
		return errors.New("no backend: write --files or --disks")
	case o.previousKeyFile != "" && o.keyFile == "":
		return errors.New("--previous-key-file needs --key-file with the new key, too")
	case o.reserve < 0 || o.reserve > maxReserve:
		return fmt.Errorf("--reserve %d: want 0 to %d, percent", o.reserve, maxReserve)
	case o.checkMemory < 0:
		return fmt.Errorf("--check-memory %d: want MiB, or 0 for no limit", o.checkMemory)
	case o.programsMemory < 0 || o.programsMemory > 0 && o.programsMemory < o.checkMemory:
		return fmt.Errorf("--programs-memory %d: want MiB, at least the %d of --check-memory, or 0",
			o.programsMemory, o.checkMemory)
	case min(o.rewrapEvery, o.trimEvery, o.requestsEvery) <= 0:
		return errors.New("--rewrap-every, --trim-every and --requests-every need a positive " +
			"duration such as 10m")
	case !slices.Contains([]string{tuningAuto, tuningOn, tuningOff}, o.latencyTuning):
		return fmt.Errorf("--latency-tuning %q: want auto, on or off", o.latencyTuning)
	case !filepath.IsAbs(o.endpoint):
		return fmt.Errorf("--endpoint %q: want an absolute path", o.endpoint)
	}

	return nil
}
