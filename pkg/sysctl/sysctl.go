// Package sysctl reads and writes network settings of the calling thread's network
// namespace. Paths are below /proc/sys/net, such as "ipv4/ip_forward".
package sysctl

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

const dir = "/proc/sys/net"

// RPFilter returns the path of a link's setting for the IPv4 reverse path filter.
func RPFilter(link string) string { return "ipv4/conf/" + link + "/rp_filter" }

// Read returns the value of a setting without surrounding white space. The error matches
// fs.ErrNotExist if the setting does not exist, for example because its link is gone.
func Read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(dir, path))
	if err != nil {
		return "", fmt.Errorf("read setting: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// ReadNumber returns the value of a setting as a number.
func ReadNumber(path string) (int, error) {
	v, err := Read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("read setting %s: %q is not a number", path, v)
	}
	return n, nil
}

// Write sets the value of a setting. If /proc/sys is read-only, as in a container that is not
// privileged, it writes below abi.HostSysctlNet, where the manifests mount the node's settings.
func Write(path, value string) error {
	err := os.WriteFile(filepath.Join(dir, path), []byte(value), 0o644)
	if !errors.Is(err, unix.EROFS) {
		return err
	}
	if e := os.WriteFile(filepath.Join(abi.HostSysctlNet, path), []byte(value),
		0o644); !errors.Is(e, os.ErrNotExist) {
		return e
	}
	return fmt.Errorf("%w: mount the node's /proc/sys/net at %s, as the manifests do", err,
		abi.HostSysctlNet)
}
