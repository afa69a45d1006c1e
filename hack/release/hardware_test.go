package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// A hardware key is used as ssh-agent has it: the agent reports its public key, and signs by the
// device. PROTOCOL.u2f of OpenSSH has both formats.
const hardwareKey, application = "sk-ssh-ed25519@openssh.com", "ssh:"

// device is an agent with one hardware key. Each signature has the flag of a touch.
type device struct {
	agent.Agent
	key ed25519.PrivateKey
}

func (d device) public() ssh.PublicKey {
	blob := ssh.Marshal(struct {
		Type        string
		Key         []byte
		Application string
	}{hardwareKey, d.key.Public().(ed25519.PublicKey), application})
	key, err := ssh.ParsePublicKey(blob)
	if err != nil {
		panic(err)
	}
	return key
}

func (d device) List() ([]*agent.Key, error) {
	return []*agent.Key{{Format: hardwareKey, Blob: d.public().Marshal()}}, nil
}

func (d device) Sign(_ ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	touched := []byte{1, 0, 0, 0, 7} // the flag of a touch, and a counter
	of, message := sha256.Sum256([]byte(application)), sha256.Sum256(data)
	signed := append(append(of[:], touched...), message[:]...)
	return &ssh.Signature{Format: hardwareKey, Blob: ed25519.Sign(d.key, signed),
		Rest: touched}, nil
}

func TestHardwareKeySigns(t *testing.T) {
	_, key, err := ed25519.GenerateKey(nil)
	errtest.Must(t, err)
	d := device{key: key}

	// The path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "agent")
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Check(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "socket")
	l, err := net.Listen("unix", socket)
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Check(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the test has ended
			}
			go func() {
				defer c.Close()
				_ = agent.ServeAgent(d, c) // io.EOF when the client has its answer
			}()
		}
	}()
	t.Setenv("SSH_AUTH_SOCK", socket)

	o := newTree(t)
	o.key = filepath.Join(t.TempDir(), "hardware.pub")
	filetest.Write(t, o.key, ssh.MarshalAuthorizedKey(d.public()), 0o644)
	private := filepath.Join(t.TempDir(), "private")
	block, err := ssh.MarshalPrivateKey(key, "")
	errtest.Must(t, err)
	filetest.Write(t, private, pem.EncodeToMemory(block), 0o600)
	checkSigned(t, o, o.key, private)
}
