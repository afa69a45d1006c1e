package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/kubeveil/kubeveil/pkg/pod"
)

// owner identifies an attachment, as in a reservation of host-local.
type owner struct{ containerID, ifName string }

// gc is the verb GC. It removes the links, records, set elements and reservations of this network
// that belong to no valid attachment. Reservations are released last. It continues after errors and
// returns them all.
func (p *plugin) gc(args *skel.CmdArgs) error {
	conf, err := parseValid(args.StdinData)
	if err != nil {
		return err
	}
	attachments, err := conf.valid()
	if err != nil {
		return coded(types.ErrInvalidNetworkConfig, fmt.Errorf("network %q: %w", conf.Name, err))
	}

	validLinks := make(map[string]bool)
	validOwners := make(map[owner]bool)
	for _, a := range attachments {
		validLinks[pod.HostLink(a.ContainerID, a.IfName)] = true
		validOwners[owner{a.ContainerID, a.IfName}] = true
	}

	orphans, err := p.paths.Orphans(conf.Name, validLinks)
	if err != nil {
		return err
	}

	var errs []error
	held := make(map[string]bool) // links that could not be removed keep their addresses
	for _, link := range orphans {
		if err := p.paths.Detach(link); err != nil {
			held[link] = true
			errs = append(errs, err)
		}
	}

	errs = append(errs, p.paths.PruneAddrs(), releaseOrphans(args, conf, validOwners, held))
	return errors.Join(errs...)
}

// valid returns the valid attachments that the runtime lists. A missing list is an error, because
// GC would otherwise remove every attachment. The list may be empty, or null, which libcni writes
// for an empty list.
func (c *netConf) valid() ([]types.GCAttachment, error) {
	raw := c.Valid
	if raw == nil {
		raw = c.Older
	}
	if raw == nil {
		return nil, errors.New(
			`"cni.dev/valid-attachments" is missing: the runtime must list the valid attachments, or [] when there are none`)
	}
	var list []types.GCAttachment
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf(`"cni.dev/valid-attachments": %w`, err)
	}
	return list, nil
}

// releaseOrphans calls DEL of host-local for each owner of a reservation that is not valid, unless
// its link is in held.
func releaseOrphans(args *skel.CmdArgs, conf *netConf, valid map[owner]bool,
	held map[string]bool) error {
	owners, err := reservations(filepath.Join(conf.IPAM.DataDir, conf.Name))
	if err != nil {
		return err
	}
	var errs []error
	for o := range owners {
		if valid[o] || held[pod.HostLink(o.containerID, o.ifName)] {
			continue
		}
		ipam, err := findIPAM(args)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, ipam.of(o.containerID, o.ifName).del())
	}
	return errors.Join(errs...)
}

// reservations returns the owners of reserved addresses. host-local has a file for each address,
// whose name is the address. The first line is the container ID, the second the interface.
func reservations(dir string) (map[owner]bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list reservations: %w", err)
	}
	owners := make(map[owner]bool)
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil {
			continue // the lock file, or the file with the last reserved address
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read reservation: %w", err)
		}
		id, ifName, _ := strings.Cut(strings.TrimSpace(string(data)), "\n")
		owners[owner{strings.TrimSpace(id), strings.TrimSpace(ifName)}] = true
	}
	return owners, nil
}
