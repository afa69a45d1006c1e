package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/table"
)

// ServiceCgroup returns the root of the cgroup tree of the node's processes. A root that it finds
// itself must be the machine's root. A container sees only its own part of the tree, without the
// processes whose sockets must be translated.
func ServiceCgroup(cfg config.Config) (string, error) {
	if cfg.Services.Cgroup != "" {
		return cfg.Services.Cgroup, nil
	}
	if _, err := os.Stat(filepath.Join(abi.HostCgroup, "cgroup.procs")); err == nil {
		return abi.HostCgroup, nil
	}
	path, err := table.FindCgroup()
	if err != nil {
		return "", err
	}
	return path, wholeTree(path)
}

// errPartOfTree matches a cgroup tree that is only a part of the machine's.
var errPartOfTree = errors.New("only a part of the node's tree of cgroups: only veild's own " +
	"sockets would be translated")

// wholeTree returns errPartOfTree unless path is the root of the machine's tree.
func wholeTree(path string) error {
	part, err := table.PartOfTree(path)
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

// CheckServices returns what this machine lacks for the service table, and changes nothing.
func CheckServices(cfg config.Config) error {
	if _, err := ServiceCgroup(cfg); err != nil {
		return err
	}
	_, err := table.Probe()
	return err
}

// NoAPIPath returns a sentence: this node has no API path beside another proxy, because of err.
func NoAPIPath(err error) string {
	return fmt.Sprintf("services.apiServers and services.apiFrontends have no effect on this "+
		"node: %v", err)
}

// ServicesTranslated reports whether a veild that translated all services left its table.
func ServicesTranslated() bool {
	_, err := os.Stat(filepath.Join(abi.BPFDir, table.MapFlows))
	return err == nil
}

// RemoveServices removes the table, if there is one.
func RemoveServices() ([]string, error) {
	pins, err := filepath.Glob(filepath.Join(abi.BPFDir, table.PinPrefix+"*"))
	if err != nil || len(pins) == 0 {
		return nil, err
	}
	return link.Remove(abi.BPFDir)
}
