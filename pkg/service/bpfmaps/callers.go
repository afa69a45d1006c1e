package bpfmaps

import (
	"fmt"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// PodClient is the key of the map service_callers (struct pod_client in
// bpf/lib/service/pod_clients.h): a service address and the index of the link of a pod that has had
// a flow to it. The programs add entries but do not delete them.
type PodClient struct {
	Addr [16]byte
	Link uint32
}

// UnknownLink is the link of the clients that existed before the map. Entries with it are never
// deleted.
const UnknownLink = 0

// assumePodClients fills the map with the addresses that are closed to pods. It is called when the
// map is new, because it is then unknown which pods are clients. After a boot no address is closed
// yet, so it adds nothing.
func (t *Table) assumePodClients() error {
	if err := t.openGuardMap(abi.PinVIPs); err != nil {
		return err
	}
	var all []PodClient
	err := each(t.maps, abi.PinVIPs, func(a [16]byte, _ uint8) bool {
		all = append(all, PodClient{Addr: a, Link: UnknownLink})
		return true
	})
	if err != nil || len(all) == 0 {
		return err
	}
	if _, err := t.maps[MapPodClients].BatchUpdate(all, make([]uint8, len(all)), nil); err != nil {
		return fmt.Errorf("fill map %s: %w", MapPodClients, err)
	}
	return nil
}
