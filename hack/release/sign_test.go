package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

const passphrase = "correct horse battery staple"

// lock protects a private key by a passphrase. The program SSH_ASKPASS answers with said when
// ssh-keygen asks for it.
func lock(t *testing.T, key, said string) {
	t.Helper()
	run(t, "", "ssh-keygen", "-q", "-p", "-P", "", "-N", passphrase, "-f", key)
	ask := filepath.Join(t.TempDir(), "ask")
	filetest.Write(t, ask, []byte("#!/bin/sh\necho '"+said+"'\n"), 0o700)
	t.Setenv("SSH_ASKPASS", ask)
	t.Setenv("SSH_ASKPASS_REQUIRE", "force")
	t.Setenv("DISPLAY", ":0") // OpenSSH before 8.4
	t.Setenv("SSH_AUTH_SOCK", "")
}

// checkSigned makes a release and checks its signature. Neither the folder nor the progress has the
// key or the passphrase.
func checkSigned(t *testing.T, o order, public, private string) {
	t.Helper()
	var progress bytes.Buffer
	o.progress = &progress
	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	if out, good := verify("--key", public, dir); !good {
		t.Errorf("verify.sh: %s", out)
	}

	files, err := os.ReadDir(dir)
	errtest.Must(t, err)
	texts := map[string][]byte{"progress": progress.Bytes()}
	for _, f := range files {
		texts[f.Name()] = filetest.Read(t, filepath.Join(dir, f.Name()))
	}
	secret := strings.Split(string(filetest.Read(t, private)), "\n")[2]
	for name, text := range texts {
		if bytes.Contains(text, []byte(secret)) || bytes.Contains(text, []byte(passphrase)) {
			t.Errorf("%s has the key or its passphrase", name)
		}
	}
}

func TestKeyWithAPassphraseSigns(t *testing.T) {
	o := newTree(t)
	lock(t, o.key, passphrase)
	checkSigned(t, o, o.key+".pub", o.key)
}

// ssh-keygen reads a private key of another user regardless of its mode, such as a mounted secret.
func TestKeyOfAnotherUserSigns(t *testing.T) {
	nettest.NeedRoot(t)
	o := newTree(t)
	errtest.Must(t, os.Chown(o.key, 65534, 65534), os.Chmod(o.key, 0o444))
	checkSigned(t, o, o.key+".pub", o.key)
}

func TestWrongPassphraseLeavesNoFolder(t *testing.T) {
	o := newTree(t)
	lock(t, o.key, "wrong")
	_, err := release(t.Context(), o, someFiles)
	left, _ := os.ReadDir(o.out)
	if err == nil || !strings.Contains(err.Error(), "ssh-keygen -Y sign") || len(left) > 0 {
		t.Errorf("%v, left are %v", err, left)
	}
}

// The private key is only in the agent, after its passphrase was given once.
func TestAgentSigns(t *testing.T) {
	o := newTree(t)
	lock(t, o.key, passphrase)
	startAgent(t)
	run(t, "", "ssh-add", "-q", o.key)
	private := filepath.Join(t.TempDir(), "away")
	public := o.key + ".pub"
	errtest.Must(t, os.Rename(o.key, private))
	o.key = public
	checkSigned(t, o, public, private)
}

// startAgent starts an ssh-agent that ends with the test.
func startAgent(t *testing.T) {
	t.Helper()
	nettest.NeedProgram(t, "ssh-add")
	// The path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "agent")
	errtest.Must(t, err)
	t.Cleanup(func() { errtest.Check(t, os.RemoveAll(dir)) })
	socket := filepath.Join(dir, "socket")
	agent := exec.CommandContext(t.Context(), nettest.NeedProgram(t, "ssh-agent"), "-D", "-a", socket)
	errtest.Must(t, agent.Start())
	t.Cleanup(func() { _ = agent.Wait() }) // the end of the context has killed it

	t.Setenv("SSH_AUTH_SOCK", socket)
	nettest.Until(t, 10*time.Second, "the agent answers", func() bool {
		// ssh-add exits with 1 if the agent has no keys, and with 2 if none answers.
		var exit *exec.ExitError
		err := exec.Command("ssh-add", "-l").Run()
		return errors.As(err, &exit) && exit.ExitCode() == 1
	})
}
