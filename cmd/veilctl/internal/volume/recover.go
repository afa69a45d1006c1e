package volume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/csi/kubestore"
	"github.com/kubeveil/kubeveil/csi/volume"
	"github.com/kubeveil/kubeveil/pkg/remote"
)

// csiVolumes is the folder of volumes on nodes, as the manifests set it.
const csiVolumes = "/var/lib/kubeveil/csi/volumes"

// recovery holds the flags of volume recover.
type recovery struct {
	access                          remote.Access
	state, kms, keyFile, secret, to string
	files                           string
	showKey                         bool
}

// recovered is the output of volume recover as JSON.
type recovered struct {
	Volume string   `json:"volume"`
	Steps  []string `json:"steps"`
	// Header is the file with the exported header; "" if none was written. RecoveryKey is set only
	// with --show-key.
	Header      string `json:"header,omitempty"`
	RecoveryKey string `json:"recoveryKey,omitempty"`
}

func volumeRecover() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "recover VOLUME",
		Short: "Show how to open a volume without Kubeveil, with stock cryptsetup",
		Long: `It prints the steps, and changes nothing in the cluster or on a disk. With --header
or --show-key, it unwraps the volume's key with the key service. For that, it must run as root on a
machine that reaches the service: on a node for a KMS plugin or a key file, anywhere for a Secret.
The LUKS header is computed from the key, so it can be exported even if the disk has lost it.

The recovery key opens the volume, so it is printed only with --show-key.`,
		Example: `veilctl volume recover pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
veilctl volume recover --header pvc.luks --show-key pvc-0e3b7f6a-8c1d-4f57-9d2b-1f0a4c5d6e7f
kubectl get veilvolume pvc-1 -o json > pvc-1.json
veilctl volume recover --state pvc-1.json --key-file /root/kek --header pvc.luks --show-key`,
	}
	fs := cmd.Flags()
	var r recovery
	r.access.Register(cmd.Flags())
	verb.CompleteNames(cmd, 1, volumeNames(&r.access))
	fs.StringVar(&r.state, "state", "",
		"`file` with the VeilVolume as JSON, without an API server")
	fs.StringVar(&r.kms, "kms-socket", keyring.KMSSocket, "the KMS plugin's `socket`")
	fs.StringVar(&r.keyFile, "key-file", "",
		"`file` with the key-encryption key, for keys of file,\n"+
			"and of secret without an API server")
	fs.StringVar(&r.secret, "secret", "",
		"`namespace/name` of the Secret with the key-encryption key")
	fs.StringVar(&r.to, "header", "",
		"`file` to which the LUKS header is exported; it must not exist")
	fs.BoolVar(&r.showKey, "show-key", false, "print the recovery key, which opens the volume")
	fs.StringVar(&r.files, "files", csiVolumes, "the node's volume `folder`")

	return verb.Reporting(cmd, func(c verb.Call) error {
		st, err := r.find(c)
		if err != nil {
			return err
		}
		if st.Key.IsZero() {
			return fmt.Errorf("volume %s has no key in phase %s: there is nothing to open",
				st.Volume, st.Phase)
		}

		out := recovered{Volume: st.Volume, Steps: r.steps(st)}
		if r.to == "" && !r.showKey {
			return r.show(c, st, out)
		}

		key, err := r.unlock(c.Ctx, st, &out)
		if err != nil {
			return err
		}
		defer key.Wipe()
		if r.showKey {
			out.RecoveryKey = string(key.Bytes())
		}

		return r.show(c, st, out)
	})
}

// find returns the state of the volume, from the file --state or from the API server.
func (r *recovery) find(c verb.Call) (volume.State, error) {
	if r.state != "" {
		text, err := os.ReadFile(r.state)
		if err != nil {
			return volume.State{}, err
		}
		st, err := kubestore.ParseObject(text)
		if err != nil {
			return st, fmt.Errorf("%s: %w: it must be what kubectl get veilvolume VOLUME -o "+
				"json printed", r.state, err)
		}
		if len(c.Args) > 0 && (len(c.Args) > 1 || c.Args[0] != st.Volume) {
			return st, fmt.Errorf("%s is of volume %s, not of %s: %w", r.state, st.Volume,
				strings.Join(c.Args, " "), verb.ErrUsage)
		}
		return st, nil
	}

	name, err := oneVolume(c)
	if err != nil {
		return volume.State{}, err
	}
	_, store, err := volumesOf(&r.access)
	if err != nil {
		return volume.State{}, fmt.Errorf("%w; without an API server: --state FILE", err)
	}

	st, _, err := store.Get(c.Ctx, name)
	return st, err
}

// unlock unwraps the data key, exports the header if --header is set, and returns the recovery key.
// The caller must wipe the recovery key.
func (r *recovery) unlock(ctx context.Context, st volume.State,
	out *recovered) (*keyring.Secret, error) {
	if err := keyring.Harden(); err != nil {
		return nil, fmt.Errorf("keys must not be swapped or dumped: %w; run this as root", err)
	}
	keys, err := r.provider(ctx, st)
	if err != nil {
		return nil, err
	}
	data, err := keys.Unwrap(ctx, st.Binding(), st.Key)
	if err != nil {
		return nil, fmt.Errorf("key of volume %s: %w", st.Volume, err)
	}
	defer data.Wipe()
	if r.to != "" {
		header, err := crypt.Header(data, st.Identity())
		if err != nil {
			return nil, err
		}
		if err := writeNew(r.to, header); err != nil {
			return nil, fmt.Errorf("export header of volume %s: %w", st.Volume, err)
		}
		out.Header = r.to
	}
	return crypt.RecoveryKey(data, st.Binding())
}

// provider returns the provider that wrapped the volume's key.
func (r *recovery) provider(ctx context.Context, st volume.State) (keyring.Provider, error) {
	switch st.Key.Provider {
	case keyring.NameKMS:
		return keyring.NewKMS(r.kms)
	case keyring.NameFile:
		if r.keyFile == "" {
			return nil, fmt.Errorf("the key of volume %s was wrapped by a key file: name it with "+
				"--key-file", st.Volume)
		}
		return keyring.File(r.keyFile)
	case keyring.NameSecret:
		if r.keyFile != "" {
			text, err := os.ReadFile(r.keyFile)
			if err != nil {
				return nil, err
			}
			defer clear(text)
			return keyring.FromSecrets(map[string]string{keyring.SecretKey: string(text)})
		}
		namespace, name, ok := strings.Cut(r.secret, "/")
		if !ok {
			return nil, fmt.Errorf("a Secret wrapped the key of volume %s: pass --secret "+
				"NAMESPACE/NAME, or --key-file FILE with its entry %q",
				st.Volume, keyring.SecretKey)
		}
		cluster, err := r.access.Open()
		if err != nil {
			return nil, err
		}
		s, err := cluster.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read secret %s: %w", r.secret, err)
		}
		values := map[string]string{}
		for k, v := range s.Data {
			values[k] = string(v)
		}
		return keyring.FromSecrets(values)
	}

	return nil, fmt.Errorf("the key of volume %s was wrapped by %q, which this veilctl "+
		"does not know", st.Volume, st.Key.Provider)
}

// writeNew creates a file that only its owner can read. It returns an error if the file exists.
func writeNew(path string, content []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Sync(), f.Close())
}

// steps returns the instructions for the user, in order. Lines that begin with two spaces are
// commands.
func (r *recovery) steps(st volume.State) []string {
	out := []string{"Delete the pods that use the volume. veilctl volume show " +
		st.Volume + " shows where it is open."}
	if st.Writer != "" {
		out[0] = fmt.Sprintf("It is open on node %s. Delete the pods that use it, and wait "+
			"until veilctl volume show %s shows no node where it is open.", st.Writer, st.Volume)
	}

	node := st.Request.Node
	if node == "" {
		node = "that has the disk"
	}

	attach := fmt.Sprintf("On node %s, as root, attach the file to a loop device:\n  "+
		"DEVICE=$(losetup --find --show --direct-io=on --sector-size 4096 %s/%s.img)", node, r.files, st.Volume)
	if st.Request.Backend != "" && st.Request.Backend != "file" {
		attach = fmt.Sprintf("On node %s, as root, find the disk with the id %s:\n  "+
			"DEVICE=/dev/disk/by-id/…", node, st.Device)
	}

	header, detached := "", "If the disk has lost its header, export the header with veilctl "+
		"volume recover --header FILE, and add --header FILE to the cryptsetup command."
	if r.to != "" {
		header, detached = "--header "+r.to+" ", "The header is in "+r.to+
			". Without --header, cryptsetup uses the header on the disk."
	}

	out = append(out, attach,
		"Open it read-only, with the recovery key:\n  cryptsetup open --type luks2 "+header+
			"--readonly $DEVICE recovered\n"+detached,
		"Mount it (a volume of volumeMode Block is the device itself):\n  mount -o ro,noload "+
			"/dev/mapper/recovered /mnt      (xfs: -o ro,norecovery)",
		"Close it:\n  umount /mnt; cryptsetup close recovered; losetup --detach $DEVICE",
		"If the volume will be used again, do not add keys to its header or change it: veil-csi "+
			"would refuse the disk as changed.")

	return out
}

func (r *recovery) show(c verb.Call, st volume.State, out recovered) error {
	if c.JSON {
		return verb.PrintJSON(c.Out, out)
	}
	key := "--show-key shows the recovery key"
	if out.RecoveryKey != "" {
		key = "recovery key " + out.RecoveryKey
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Volume %s: %s, LUKS uuid %s, epoch %d, key wrapped by %s; %s\n", st.Volume,
		size(st.Payload), st.UUID, st.Epoch, keyName(st.Key), key)
	for i, step := range out.Steps {
		fmt.Fprintf(&b, "\n%d. %s\n", i+1, strings.ReplaceAll(step, "\n", "\n   "))
	}
	_, err := io.WriteString(c.Out, b.String())
	return err
}
