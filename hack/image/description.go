package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
)

// description is what an image holds, for those who list its parts.
type description struct {
	// Digest is the digest of the image, or of the index of several images.
	Digest string `json:"digest"`
	// Images are the images by architecture.
	Images map[string]content `json:"images"`
}

// content is what the image for one architecture holds.
type content struct {
	// Root is the folder with the programs that were built. Programs are their paths, both in Root
	// and in the image.
	Root     string   `json:"root"`
	Programs []string `json:"programs"`
	// Debian are the packages from which other files are.
	Debian []debianPackage `json:"debian,omitempty"`
}

// contentOf returns the content of the image of a recipe whose programs were built in root.
func contentOf(r recipe, arch, root string) (content, error) {
	packages, err := locked(debianLock, arch, r)
	if err != nil {
		return content{}, err
	}
	c := content{Root: root, Debian: packages}
	for dir, programs := range r.programs {
		for _, p := range programs {
			c.Programs = append(c.Programs, filepath.Join(dir, filepath.Base(p)))
		}
	}
	for _, r := range r.released {
		for _, p := range r.packages {
			c.Programs = append(c.Programs, filepath.Join(r.dir, filepath.Base(p)))
		}
	}
	slices.Sort(c.Programs)
	return c, nil
}

// write writes the description to a file. It writes nothing if path is empty.
func (d description) write(path string) error {
	if path == "" {
		return nil
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
