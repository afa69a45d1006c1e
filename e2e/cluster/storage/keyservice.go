package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/e2e/cluster/storage/claims"
)

// The machine's KMS plugin and its keys.
const (
	plugin     = "/root/kmsplugin"
	pluginKeys = "/root/kms.keys"
	// newKey adds a key to the file. A plugin that starts later wraps with it.
	newKey = "head -c 32 /dev/urandom | base64 >>" + pluginKeys
	// startPlugin and stopPlugin start and stop the plugin as a unit of systemd.
	startPlugin = "systemd-run --quiet --unit=kmsplugin " + plugin + " " + keyring.KMSSocket + " " +
		pluginKeys
	stopPlugin = "systemctl stop kmsplugin"
)

// keyServiceAway starts the pod of a claim of the shipped class, whose KMS plugin this node lacks.
// The pod must wait, an event must name the reason, and nothing may be formatted.
func (s *Session) keyServiceAway(ctx context.Context) error {
	if err := s.Create(ctx, waits); err != nil {
		return err
	}
	if err := s.away(ctx); err != nil {
		return err
	}
	return s.unformatted(ctx, waits)
}

// away waits for an event of the pod that names the missing key service.
func (s *Session) away(ctx context.Context) error {
	uid, err := s.Kubectl(ctx, "get", "pod", waits.Name, "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}
	return claims.Until(ctx, "an event reports that the key service is away", func() error {
		out, err := s.Kubectl(ctx, "get", "events", "--field-selector=involvedObject.uid="+uid,
			"-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "key service unavailable") {
			err = fmt.Errorf("events are %q", out)
		}
		return err
	})
}

// unformatted returns an error unless the state of the claim's volume is New, so that nothing was
// written.
func (s *Session) unformatted(ctx context.Context, c claims.Claim) error {
	volume, err := s.Volume(ctx, c)
	if err != nil {
		return err
	}
	phase, err := s.Kubectl(ctx, "get", "veilvolume", volume, "-o", "jsonpath={.status.phase}")
	if err == nil && phase != "New" {
		err = fmt.Errorf("volume %s is in phase %q, want New", volume, phase)
	}
	return err
}

// keyServiceComes starts the node's plugin. The waiting pod must get its volume.
func (s *Session) keyServiceComes(ctx context.Context) error {
	if err := s.Cluster.Machines[0].PutFile(ctx, plugin,
		s.Cluster.Lab.Program("kmsplugin")); err != nil {
		return err
	}
	if _, err := s.Node(ctx, newKey+" && "+startPlugin); err != nil {
		return err
	}
	return s.WriteCanary(ctx, waits)
}

// rewrap adds a new key to the plugin and runs `veilctl volume rewrap` as in docs/storage.md, while
// the volume is open. The new key must then wrap the volume's key. rewrap removes the former key.
func (s *Session) rewrap(ctx context.Context) error {
	before, err := s.wrappedBy(ctx, waits)
	if err != nil {
		return err
	}
	if _, err := s.Node(ctx, newKey+" && "+stopPlugin+" && "+startPlugin); err != nil {
		return err
	}
	said, err := s.Shell(ctx, "veilctl volume rewrap --all")
	if err != nil {
		return err
	}
	after, err := s.wrappedBy(ctx, waits)
	if err != nil {
		return err
	}
	if after == before || !strings.Contains(said, after) {
		return fmt.Errorf("the volume's key is wrapped by %q, before by %q; veilctl printed %q",
			after, before, said)
	}
	_, err = s.Node(ctx, "sed -i 1d "+pluginKeys)
	return err
}

// wrappedBy returns the id of the key-encryption key that wraps the key of the claim's volume.
func (s *Session) wrappedBy(ctx context.Context, c claims.Claim) (string, error) {
	volume, err := s.Volume(ctx, c)
	if err != nil {
		return "", err
	}
	id, err := s.Kubectl(ctx, "get", "veilvolume", volume, "-o", "jsonpath={.status.key.keyID}")
	if err == nil && id == "" {
		err = fmt.Errorf("volume %s has no wrapped key", volume)
	}
	return id, err
}

// keyServiceGoes stops the plugin. The open volume must still work. After it is closed, a new pod
// must wait until the plugin is back, and then find its data.
func (s *Session) keyServiceGoes(ctx context.Context) error {
	if _, err := s.Node(ctx, stopPlugin); err != nil {
		return err
	}
	path, err := s.Path(ctx, waits)
	if err != nil {
		return err
	}
	if err := s.Write(ctx, path+"/second", false); err != nil {
		return fmt.Errorf("without the key service: %w", err)
	}
	if err := s.Stop(ctx, waits.Name); err != nil {
		return err
	}

	if err := s.Create(ctx, waits); err != nil {
		return err
	}
	if err := s.away(ctx); err != nil {
		return err
	}
	if _, err := s.Node(ctx, startPlugin); err != nil {
		return err
	}
	if err := s.CheckFile(ctx, waits, "second"); err != nil {
		return err
	}

	out, err := s.Kubectl(ctx, "get", "events", "--field-selector=reason=Unsealed,"+
		"involvedObject.name="+waits.Name, "-o", "name")
	if err == nil && out != "" {
		err = fmt.Errorf("the volume was closed unsealed: %s", out)
	}
	_, gone := s.Kubectl(ctx, "delete", "pod/"+waits.Name, "pvc/"+waits.Name)
	return errors.Join(err, gone)
}
