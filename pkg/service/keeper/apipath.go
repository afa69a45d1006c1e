package keeper

import (
	"errors"

	"github.com/kubeveil/kubeveil/pkg/service"
	"github.com/kubeveil/kubeveil/pkg/service/bpfmaps"
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

// goWithoutAPIPath leaves API servers to the other proxy, because of err.
func (f *Feature) goWithoutAPIPath(err error) error {
	f.noAPIPath = NoAPIPath(err)
	f.o.Log.Warn("not as it should be", "problem", f.noAPIPath)
	closeErr := f.Close()
	f.table, f.links, f.keeper = nil, nil, nil
	return errors.Join(closeErr, f.remove())
}

// remove removes the table from the node and logs what it removed.
func (f *Feature) remove() error {
	taken, err := Remove()
	for _, t := range taken {
		f.o.Log.Info("removed what translated services", "what", t)
	}
	return err
}

// apiFeed passes a feed of the API servers' own service to the Keeper, reduced to what entry 0
// replaces: its ClusterIPs. The other proxy serves what else it may have, such as NodePorts.
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
