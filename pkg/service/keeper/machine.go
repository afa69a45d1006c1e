package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// cgroupOf returns the root of the tree of cgroups that the node's processes are in. Without
// services.cgroup it must be the root of the machine's tree: a container sees only its own part,
// which has no process to translate for.
func cgroupOf(cfg config.Config) (string, error) {
	if cfg.Services.Cgroup != "" {
		return cfg.Services.Cgroup, nil
	}
	if _, err := os.Stat(filepath.Join(abi.HostCgroup, "cgroup.procs")); err == nil {
		return abi.HostCgroup, nil
	}
	path, err := bpfmaps.FindCgroup()
	if err != nil {
		return "", err
	}
	return path, wholeTree(path)
}

// errPartOfTree matches a cgroup tree that is only a part of the machine's tree.
var errPartOfTree = errors.New("only a part of the node's tree of cgroups: only veild's own " +
	"sockets would be translated")

// wholeTree returns errPartOfTree unless path is the root of the machine's tree.
func wholeTree(path string) error {
	part, err := bpfmaps.PartOfTree(path)
	if err != nil {
		return fmt.Errorf("look at the tree of cgroups: %w", err)
	}
	if part {
		return fmt.Errorf("%s is %w: add manifests/components/services (with serviceProxy: none "+
			"manifests/components/api-path), or set services.cgroup to the root of the tree",
			path, errPartOfTree)
	}
	return nil
}

// Check returns what this machine lacks for the table of services. It changes nothing.
func Check(cfg config.Config) error {
	if _, err := cgroupOf(cfg); err != nil {
		return err
	}
	_, err := bpfmaps.Probe()
	return err
}

// NoAPIPath returns a sentence: this node has no API path beside another proxy, because of err.
func NoAPIPath(err error) string {
	return fmt.Sprintf("services.apiServers and services.apiFrontends have no effect on this "+
		"node: %v", err)
}

// leftAll reports whether a veild that translated all services left its table.
func leftAll() bool {
	_, err := os.Stat(filepath.Join(abi.BPFDir, bpfmaps.MapFlows))
	return err == nil
}

// Remove removes the table of services and its programs from this node, and returns what it
// removed. Without a table it does nothing.
func Remove() ([]string, error) {
	pins, err := filepath.Glob(filepath.Join(abi.BPFDir, bpfmaps.PinPrefix+"*"))
	if err != nil || len(pins) == 0 {
		return nil, err
	}
	return link.Remove(abi.BPFDir)
}
