package keeper

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
	"github.com/kubeveil/kubeveil/pkg/service/link"
)

// openAPIPath opens a table for entry 0 alone, if the configuration has the API path beside another
// proxy. It first removes any other table, which no process maintains. If the table cannot be
// opened, veild runs without the API path: the other proxy serves clients of the API servers too.
func (f *Feature) openAPIPath() error {
	if !f.o.Config.APIPath() || leftAll() {
		if err := f.remove(); err != nil || !f.o.Config.APIPath() {
			return err
		}
	}

	if err := f.open(bpfmaps.Config{Limits: service.APILimits, Memory: bpfmaps.APIMemory,
		ConnectOnly: true}); err != nil {
		return f.goWithoutAPIPath(err)
	}
	return nil
}

// goWithoutAPIPath leaves API servers to the other proxy. err is the reason, which it logs.
func (f *Feature) goWithoutAPIPath(err error) error {
	f.noAPIPath = NoAPIPath(err)
	f.o.Log.Warn("new problem of the node", "problem", f.noAPIPath)
	closeErr := f.Close()
	f.table, f.links, f.keeper = nil, nil, nil
	return errors.Join(closeErr, f.remove())
}

// remove removes the table from the node and logs what it removed.
func (f *Feature) remove() error {
	taken, err := Remove()
	for _, t := range taken {
		f.o.Log.Info("removed a part of the table of services", "what", t)
	}
	return err
}

// apiFeed passes a feed of the API servers' own service to the Keeper, reduced to what entry 0
// replaces: its ClusterIPs. The other proxy serves the service's other frontends, such as
// NodePorts.
type apiFeed struct{ *Keeper }

// PutService adds or replaces a service.
func (f apiFeed) PutService(s service.Service) {
	reduced := service.Service{Name: s.Name, Created: s.Created, ClusterIPs: s.ClusterIPs}
	for _, p := range s.Ports {
		p.NodePort = 0
		reduced.Ports = append(reduced.Ports, p)
	}
	f.Keeper.PutService(reduced)
}

// NoAPIPath returns a sentence that says that this node has no API path beside another proxy,
// because of err.
func NoAPIPath(err error) string {
	return fmt.Sprintf("services.apiServers and services.apiFrontends have no effect on this "+
		"node: %v", err)
}

// leftAll reports whether a veild that translated all services left its table.
func leftAll() bool {
	_, err := os.Stat(filepath.Join(abi.BPFDir, bpfmaps.MapPodClients))
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
