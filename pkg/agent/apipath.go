package agent

import (
	"errors"

	"github.com/kubeveil/kubeveil/pkg/config"
	"github.com/kubeveil/kubeveil/pkg/node"
	"github.com/kubeveil/kubeveil/pkg/service"
	proxy "github.com/kubeveil/kubeveil/pkg/service/keeper"
	"github.com/kubeveil/kubeveil/pkg/service/link"
	"github.com/kubeveil/kubeveil/pkg/service/table"
)

// links returns the programs at links. It returns nil if another program translates services, with
// or without the API path.
func (a *Agent) links() *link.Links {
	if a.services == nil {
		return nil
	}
	return a.services.links
}

// openAPIPath opens a table for entry 0 alone, if the configuration asks for the API path beside
// another proxy. Any other table has no process that maintains it and is removed first. The other
// proxy serves clients of the API servers too, so veild runs without the API path where that cannot
// be opened.
func (a *Agent) openAPIPath(cfg config.Config) error {
	if !cfg.APIPath() || node.ServicesTranslated() {
		if err := a.removeServices(); err != nil || !cfg.APIPath() {
			return err
		}
	}

	if err := a.newServices(cfg, table.Config{Limits: service.APILimits, Memory: table.APIMemory,
		ConnectOnly: true}); err != nil {
		return a.goWithoutAPIPath(err)
	}
	return nil
}

// goWithoutAPIPath leaves API servers to the other proxy, because of err.
func (a *Agent) goWithoutAPIPath(err error) error {
	a.noAPIPath = node.NoAPIPath(err)
	a.log.Warn("not as it should be", "problem", a.noAPIPath)
	closeErr := a.closeServices()
	a.services = nil
	return errors.Join(closeErr, a.removeServices())
}

func (a *Agent) removeServices() error {
	taken, err := node.RemoveServices()
	for _, t := range taken {
		a.log.Info("removed what translated services", "what", t)
	}
	return err
}

// apiFeed passes a feed of the API servers' own service to the proxy, reduced to what entry 0
// replaces: its ClusterIPs. The other proxy serves what else it may have, such as NodePorts.
type apiFeed struct{ *proxy.Keeper }

// PutService adds or replaces a service.
func (f apiFeed) PutService(s service.Service) {
	reduced := service.Service{Name: s.Name, Created: s.Created, ClusterIPs: s.ClusterIPs}
	for _, p := range s.Ports {
		p.NodePort = 0
		reduced.Ports = append(reduced.Ports, p)
	}
	f.Keeper.PutService(reduced)
}
