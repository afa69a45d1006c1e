package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/hack/chart"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

// run runs a program in dir.
func run(t *testing.T, dir, name string, args ...string) {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = dir
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", c, err, out)
	}
}

// newTree returns an order for a checkout with one commit and the tag v0.1.0, and with a key.
func newTree(t *testing.T) order {
	t.Helper()
	nettest.NeedProgram(t, "git")
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	errtest.Must(t, os.Mkdir(tree, 0o755))
	filetest.Write(t, filepath.Join(tree, "file"), []byte("text"), 0o600)
	filetest.Write(t, filepath.Join(tree, ".gitignore"), []byte("/out/\n/ignored\n"), 0o600)
	module := []byte("module example.com/x\n\ngo 1.26\n")
	filetest.Write(t, filepath.Join(tree, "go.mod"), module, 0o600)
	run(t, tree, "git", "init", "-q")
	run(t, tree, "git", "add", ".")
	commit(t, tree)
	run(t, tree, "git", "tag", "v0.1.0")
	return order{tree: tree, out: filepath.Join(tree, "out/release"), version: "v0.1.0",
		name: "localhost/kubeveil", key: newKey(t), progress: io.Discard}
}

func commit(t *testing.T, tree string) {
	t.Helper()
	run(t, tree, "git", "-c", "user.name=test", "-c", "user.email=test@example.com",
		"-c", "commit.gpgsign=false", "commit", "-q", "--allow-empty", "-m", "commit")
}

// newKey returns the name of a new private key. The public key is beside it.
func newKey(t *testing.T) string {
	t.Helper()
	nettest.NeedProgram(t, "ssh-keygen")
	key := filepath.Join(t.TempDir(), "key")
	run(t, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
	return key
}

// someFiles is a build of small files that stand for the files of a release.
func someFiles(_ context.Context, o order, dir string) error {
	err := os.WriteFile(filepath.Join(dir, "veild-linux-amd64"), []byte("a program"), 0o755)
	return errors.Join(err,
		os.WriteFile(filepath.Join(dir, "kubeveil.yaml"), []byte("kind: Pod\n"), 0o644),
		copyFile("verify.sh", filepath.Join(dir, "verify.sh")))
}

func TestBadReleasesAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*order)
		want   string
	}{
		"no version":        {func(o *order) { o.version = "" }, "--version"},
		"version without v": {func(o *order) { o.version = "0.1.0" }, "--version"},
		"two numbers":       {func(o *order) { o.version = "v0.1" }, "--version"},
		"a path":            {func(o *order) { o.version = "v0.1.0/../x" }, "--version"},
		"build metadata":    {func(o *order) { o.version = "v0.1.0+x" }, "--version"},
		"a name with a tag": {func(o *order) { o.name = "localhost/kubeveil:dev" }, "--name"},
		"a short name":      {func(o *order) { o.name = "kubeveil" }, "--name"},
		"no key":            {func(o *order) { o.key = "" }, "--key is missing"},
		"a missing key":     {func(o *order) { o.key += "x" }, "no such file"},
		"a text as a key": {func(o *order) {
			o.key = filepath.Join(t.TempDir(), "text")
			filetest.Write(t, o.key, []byte("text"), 0o600)
		}, "is not a key file"},
		"a key that others can read": {func(o *order) {
			errtest.Must(t, os.Chmod(o.key, 0o640))
		}, "`chmod 600 "},
		"a private key that others can read": {func(o *order) {
			errtest.Must(t, os.Chmod(o.key, 0o604))
			o.key += ".pub"
		}, "`chmod 600 "},
		"a private key with the name of a public one": {func(o *order) {
			errtest.Must(t, os.Rename(o.key, o.key+".pub"))
			o.key += ".pub"
		}, "rename it, without .pub"},
		"a key in the tree": {func(o *order) {
			errtest.Must(t, copyFile(o.key, filepath.Join(o.tree, "ignored")))
			o.key = filepath.Join(o.tree, "ignored")
		}, "is in the tree"},
		"another tag":    {func(o *order) { o.version = "v0.2.0" }, "no tag v0.2.0"},
		"a later commit": {func(o *order) { commit(t, o.tree) }, "no tag v0.1.0"},
		"a changed file": {func(o *order) {
			filetest.Write(t, filepath.Join(o.tree, "file"), []byte("changed"), 0o600)
		}, " M file"},
		"a new file": {func(o *order) {
			filetest.Write(t, filepath.Join(o.tree, "new.go"), []byte("changed"), 0o600)
		}, "?? new.go"},
		"an ignored file": {func(o *order) {
			filetest.Write(t, filepath.Join(o.tree, "ignored"), []byte("changed"), 0o600)
		}, "!! ignored"},
		"no checkout": {func(o *order) { o.tree = t.TempDir() }, "not the top folder"},
		"a newer Go": {func(o *order) {
			text := []byte("module example.com/x\n\ngo 1.999\n")
			filetest.Write(t, filepath.Join(o.tree, "go.mod"), text, 0o600)
			run(t, o.tree, "git", "add", ".")
			commit(t, o.tree)
			run(t, o.tree, "git", "tag", "-f", o.version)
		}, "go list -m"},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTree(t)
			tc.change(&o)
			_, err := release(t.Context(), o, func(context.Context, order, string) error {
				t.Error("it was built")
				return nil
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			if _, err := os.Stat(filepath.Join(o.tree, "out")); err == nil {
				t.Error("out/ was made")
			}
		})
	}
}

func TestReleaseIsWholeOrAbsent(t *testing.T) {
	o := newTree(t)
	_, err := release(t.Context(), o, func(_ context.Context, _ order, dir string) error {
		filetest.Write(t, filepath.Join(dir, "half"), nil, 0o600)
		return errors.New("the build fails")
	})
	left, _ := os.ReadDir(o.out)
	if err == nil || len(left) > 0 {
		t.Errorf("after a failed build: %v, %v", err, left)
	}

	_, err = release(t.Context(), o, func(_ context.Context, from order, dir string) error {
		filetest.Write(t, filepath.Join(from.tree, "file"), []byte("changed"), 0o600)
		return nil
	})
	left, _ = os.ReadDir(o.out)
	if err == nil || !strings.Contains(err.Error(), "after the build") || len(left) > 0 {
		t.Errorf("after a build that changes its sources: %v, %v", err, left)
	}

	for _, name := range []string{"a b", "-c", ".hidden", "x\ny", "link"} {
		_, err = release(t.Context(), o, func(_ context.Context, _ order, dir string) error {
			if name == "link" {
				return os.Symlink(versionFile, filepath.Join(dir, name))
			}
			return os.WriteFile(filepath.Join(dir, name), nil, 0o644)
		})
		left, _ = os.ReadDir(o.out)
		if err == nil || !strings.Contains(err.Error(), "plain name") || len(left) > 0 {
			t.Errorf("after a build that writes %q: %v, %v", name, err, left)
		}
	}

	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	before := filetest.Read(t, filepath.Join(dir, sumsFile))
	if _, err := release(t.Context(), o, someFiles); err == nil ||
		!strings.Contains(err.Error(), "exists") {
		t.Errorf("a second release: %v", err)
	}
	if !bytes.Equal(before, filetest.Read(t, filepath.Join(dir, sumsFile))) {
		t.Error("the second release changed the first one")
	}
}

// The signature needs the agent when --key is the public key. Without an agent nothing is signed,
// and no folder appears.
func TestPublicKeyNeedsAnAgent(t *testing.T) {
	o := newTree(t)
	t.Setenv("SSH_AUTH_SOCK", "/nowhere")
	other := filepath.Join(t.TempDir(), "other.pub") // the private key must not be beside it
	errtest.Must(t, os.Rename(o.key+".pub", other))
	o.key = other
	_, err := release(t.Context(), o, func(context.Context, order, string) error {
		t.Error("it was built")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "ssh-add") {
		t.Error(err)
	}
	if _, err := os.Stat(o.out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v", o.out, err)
	}
}

func TestManifestsNameImagesByTagAndDigest(t *testing.T) {
	kubectl, err := filepath.Abs("../../out/bin/kubectl")
	errtest.Must(t, err)
	if _, err := os.Stat(kubectl); err != nil {
		nettest.NeedProgram(t, "kubectl")
		kubectl = "kubectl"
	}
	tree, err := filepath.Abs("../..")
	errtest.Must(t, err)
	o := order{tree: tree, version: "v0.1.0", name: "registry.example/kubeveil"}
	digest, built := "sha256:"+strings.Repeat("ab", 32), map[string]description{}
	for _, image := range images {
		built[image] = description{Digest: digest}
	}
	dir := t.TempDir()
	k := chart.Kustomize{Tree: tree, Work: t.TempDir(), Command: []string{kubectl, "kustomize"}}
	errtest.Must(t, renderAll(t.Context(), o, dir, k, built),
		writeChart(t.Context(), o, dir, k, built))

	anImage := regexp.MustCompile(`image: (.*)`)
	for file := range manifests {
		text := string(filetest.Read(t, filepath.Join(dir, file)))
		named := anImage.FindAllStringSubmatch(text, -1)
		if (len(named) == 0) != (file == definitions) {
			t.Errorf("%s names %d images", file, len(named))
		}
		for _, m := range named {
			image, _, _ := strings.Cut(m[1], ":")
			if m[1] != image+":v0.1.0@"+digest ||
				!strings.HasPrefix(image, "registry.example/kubeveil") {
				t.Errorf("%s names the image %s", file, m[1])
			}
		}
	}

	out, err := exec.Command("tar", "-xzOf", filepath.Join(dir, "kubeveil-0.1.0.tgz"),
		"kubeveil/values.yaml").CombinedOutput()
	errtest.Must(t, err)
	for _, want := range []string{"repository: registry.example/kubeveil-csi\n", "tag: v0.1.0\n",
		"digest: " + digest + "\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the values of the chart lack %q:\n%s", want, out)
		}
	}

	errtest.Must(t, writeComponents(o, dir))
	run(t, dir, "tar", "-xzf", components)
	filetest.Write(t, filepath.Join(dir, "kustomization.yaml"), []byte("resources: "+
		"[kubeveil.yaml]\ncomponents: [components/policy, components/servicemonitor]\n"), 0o600)
	out, err = exec.Command(kubectl, "kustomize", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--policy=kubernetes") ||
		!strings.Contains(string(out), "kind: ServiceMonitor") {
		t.Errorf("the manifests of the release with components: %v: %s", err, out)
	}

	_, err = o.render(t.Context(), "manifests", k, nil)
	if err == nil || !strings.Contains(err.Error(), "localhost/kubeveil:dev") {
		t.Errorf("an image without a digest: %v", err)
	}
}

func TestCommandLine(t *testing.T) {
	var help bytes.Buffer
	if _, err := read([]string{"-h"}, &help); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(help.String(), "Examples:") {
		t.Errorf("%v:\n%s", err, &help)
	}
	o, err := read([]string{"--version", "v0.1.0"}, io.Discard)
	if err != nil || o.name != "localhost/kubeveil" || !filepath.IsAbs(o.out) {
		t.Errorf("%+v, %v", o, err)
	}
	if o.imageName("kubeveil-csi") != "localhost/kubeveil-csi" {
		t.Error(o.imageName("kubeveil-csi"))
	}
}

// A build has what the tag has, also if git is configured to ignore a change, and if the checkout
// changes meanwhile. No checkout is left, whether the build succeeds, fails or is interrupted.
func TestChangesThatGitOverlooksAreNotBuilt(t *testing.T) {
	o := newTree(t)
	file := filepath.Join(o.tree, "file")
	run(t, o.tree, "git", "update-index", "--assume-unchanged", "file")
	filetest.Write(t, file, []byte("hidden"), 0o600)

	ctx, interrupt := context.WithCancel(t.Context())
	for what, end := range map[string]func() error{
		"succeeds":    func() error { return nil },
		"fails":       func() error { return errors.New("the build fails") },
		"interrupted": func() error { interrupt(); return ctx.Err() },
	} {
		built := t.Context()
		if what == "interrupted" {
			built = ctx
		}
		dir, err := release(built, o, func(_ context.Context, from order, dir string) error {
			filetest.Write(t, filepath.Join(o.tree, "new"), nil, 0o600)
			had := filepath.Join(from.tree, "file")
			return errors.Join(copyFile(had, filepath.Join(dir, "file")), end())
		})
		if (err == nil) != (what == "succeeds") {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			if text := string(filetest.Read(t, filepath.Join(dir, "file"))); text != "text" {
				t.Errorf("the release has the text %q", text)
			}
			errtest.Must(t, os.RemoveAll(dir))
		}
		errtest.Must(t, os.Remove(filepath.Join(o.tree, "new")))

		left, err := os.ReadDir(o.out)
		errtest.Must(t, err)
		if len(left) > 0 {
			t.Errorf("%s: left are %v", what, left)
		}
	}
	interrupt()
}

func TestEachStepHasLines(t *testing.T) {
	o := newTree(t)
	var progress bytes.Buffer
	o.progress = &progress
	_, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err)
	if !regexp.MustCompile(`(?m)^sums and signature …\nsums and signature: done in \d+s$`).
		Match(progress.Bytes()) {
		t.Errorf("%s", &progress)
	}

	progress.Reset()
	err = o.step("image", func() error { return errors.New("broken") })
	if err == nil || progress.String() != "image …\n" {
		t.Errorf("a step that fails: %v, %q", err, &progress)
	}
}
