package main

import (
	"archive/zip"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/filetest"
)

// Neither variables nor settings of `go env -w` change what is built. Where modules come from is as
// the user has it.
func TestBuildsForgetSettingsOfTheUser(t *testing.T) {
	file := filepath.Join(t.TempDir(), "env")
	filetest.Write(t, file, []byte("GOOS=plan9\nGOFLAGS=-tags=x\nGONOSUMDB=example.com\n"), 0o600)
	for name, value := range map[string]string{"GOENV": file, "GONOSUMDB": "", "GOFLAGS": "",
		"GOARCH": "riscv64", "GIT_DIR": "/nowhere", "GOTOOLCHAIN": "auto", "VERSION": "v9.9.9",
		"BASH_ENV": "/nowhere", "SSH_AUTH_SOCK": "/agent"} {
		t.Setenv(name, value)
	}

	sources, err := readModuleSources()
	errtest.Must(t, err)
	c := exec.Command("go", "env", "GOOS", "GOARCH", "GOFLAGS", "GONOSUMDB", "GOTOOLCHAIN")
	c.Env = environment(sources)
	got, err := c.Output()
	errtest.Must(t, err)
	want := runtime.GOOS + "\n" + runtime.GOARCH + "\n-trimpath -mod=readonly\nexample.com\nlocal\n"
	if string(got) != want {
		t.Errorf("go env prints %q, want %q", got, want)
	}
	for _, line := range []string{"GIT_DIR=/nowhere", "VERSION=v9.9.9", "BASH_ENV=/nowhere"} {
		if slices.Contains(c.Env, line) {
			t.Errorf("programs get %s", line)
		}
	}
	for _, line := range []string{"PATH=" + os.Getenv("PATH"), "SSH_AUTH_SOCK=/agent"} {
		if !slices.Contains(c.Env, line) {
			t.Errorf("programs do not get %s", line)
		}
	}
}

// git's configuration of the user and of the repository can rewrite each file of a checkout, and
// attributes select the files. A release has what the commit has.
func TestBuildsForgetConfigurationOfGit(t *testing.T) {
	const rewrite = "[core]\n\tautocrlf = true\n\tattributesFile = %s\n" +
		"[filter \"rewrite\"]\n\tsmudge = sed s/text/changed/\n\tclean = sed s/changed/text/\n"
	for name, configure := range map[string]func(t *testing.T, o order, config, attributes string){
		"of the user": func(t *testing.T, _ order, config, attributes string) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
			errtest.Must(t, os.MkdirAll(filepath.Join(home, ".config/git"), 0o755))
			filetest.Write(t, filepath.Join(home, ".gitconfig"), []byte(config), 0o600)
			filetest.Write(t, filepath.Join(home, ".config/git/attributes"), []byte(attributes),
				0o600)
		},
		"of the repository": func(t *testing.T, o order, config, attributes string) {
			file := filepath.Join(o.tree, ".git/config")
			filetest.Write(t, file, append(filetest.Read(t, file), config...), 0o600)
			errtest.Must(t, os.MkdirAll(filepath.Join(o.tree, ".git/info"), 0o755))
			filetest.Write(t, filepath.Join(o.tree, ".git/info/attributes"), []byte(attributes),
				0o600)
		},
		"of the environment": func(t *testing.T, _ order, config, _ string) {
			file := filepath.Join(t.TempDir(), "config")
			filetest.Write(t, file, []byte(config), 0o600)
			t.Setenv("GIT_CONFIG_GLOBAL", file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTree(t)
			attributes := filepath.Join(t.TempDir(), "attributes")
			filetest.Write(t, attributes, []byte("* filter=rewrite\n"), 0o600)
			configure(t, o, strings.Replace(rewrite, "%s", attributes, 1), "* filter=rewrite\n")

			// A checkout by git alone is rewritten, so the configuration has an effect.
			plain := filepath.Join(t.TempDir(), "plain")
			run(t, o.tree, "git", "worktree", "add", "-q", "--detach", plain, "v0.1.0")
			if got := string(filetest.Read(t, filepath.Join(plain, "file"))); got != "changed" {
				t.Errorf("git alone checks out %q", got)
			}

			dir, err := release(t.Context(), o, func(_ context.Context, from order,
				dir string) error {
				return copyFile(filepath.Join(from.tree, "file"), filepath.Join(dir, "file"))
			})
			errtest.Must(t, err)
			if got := string(filetest.Read(t, filepath.Join(dir, "file"))); got != "text" {
				t.Errorf("the release has %q", got)
			}
		})
	}
}

// A module that was changed in the cache is not built.
func TestChangedModulesAreRefused(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "modules")
	useModule(t, cache)
	source := filepath.Join(cache, "example.com/dep@v1.0.0/dep.go")
	o := newTree(t)
	filetest.Write(t, filepath.Join(o.tree, "go.mod"),
		[]byte("module example.com/x\n\ngo 1.26\n\nrequire example.com/dep v1.0.0\n"), 0o600)
	filetest.Write(t, filepath.Join(o.tree, "x.go"),
		[]byte("package x\n\nimport _ \"example.com/dep\"\n"), 0o600)
	run(t, o.tree, "go", "mod", "tidy")
	run(t, o.tree, "go", "build", "./...")
	run(t, o.tree, "git", "add", ".")
	commit(t, o.tree)
	run(t, o.tree, "git", "tag", "-f", o.version)

	dir, err := release(t.Context(), o, someFiles)
	errtest.Must(t, err, os.RemoveAll(dir), os.Chmod(source, 0o600))
	filetest.Write(t, source, []byte("package dep\n\nconst Changed = true\n"), 0o600)
	run(t, o.tree, "go", "build", "./...") // Go alone builds it

	_, err = release(t.Context(), o, func(context.Context, order, string) error {
		t.Error("it was built")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "go clean -modcache") {
		t.Errorf("error %v", err)
	}
}

// useModule makes a proxy with the module example.com/dep v1.0.0, and makes Go use it and the cache
// until the test ends.
func useModule(t *testing.T, cache string) {
	t.Helper()
	const module = "module example.com/dep\n\ngo 1.26\n"
	proxy := t.TempDir()
	versions := filepath.Join(proxy, "example.com/dep/@v")
	errtest.Must(t, os.MkdirAll(versions, 0o755))
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range map[string]string{"go.mod": module, "dep.go": "package dep\n"} {
		w, err := z.Create("example.com/dep@v1.0.0/" + name)
		errtest.Must(t, err)
		_, err = w.Write([]byte(text))
		errtest.Must(t, err)
	}
	errtest.Must(t, z.Close())
	for name, text := range map[string]string{"list": "v1.0.0\n", "v1.0.0.mod": module,
		"v1.0.0.info": `{"Version": "v1.0.0"}`, "v1.0.0.zip": b.String()} {
		filetest.Write(t, filepath.Join(versions, name), []byte(text), 0o600)
	}

	for name, value := range map[string]string{"GOPROXY": "file://" + proxy, "GONOSUMDB": "*",
		"GOSUMDB": "off", "GOMODCACHE": cache, "GOFLAGS": "-modcacherw"} {
		t.Setenv(name, value)
	}
	was := moduleSources
	moduleSources = readModuleSources
	t.Cleanup(func() { moduleSources = was })
}
