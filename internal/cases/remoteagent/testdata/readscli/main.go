// Command readscli is a workspace CLI for a test: the reference one, which reads the config of the
// workspace's image from the image's registry before each up, as real CLIs do.
package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"time"

	"github.com/tailscale/hujson"

	"dagger/parity/internal/cli"
	"dagger/parity/internal/reference/registry"
)

func main() {
	args := os.Args[1:]
	if len(args) == 0 || args[0] != "devsy" { // by that name it is the agent, as the reference CLI is
		args = append([]string{"devsy"}, args...)
	}
	if len(args) > 3 && args[1] == "workspace" && args[2] == "up" {
		if err := read(args[len(args)-1]); err != nil {
			_ = json.NewEncoder(os.Stdout).Encode(map[string]string{"outcome": "error", "message": "read the image's config: " + err.Error()})
			os.Exit(1)
		}
	}
	os.Exit(cli.Main(args))
}

// read reads the config of the image that the workspace in a folder is to have.
func read(folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, ".devcontainer", "devcontainer.json"))
	if err != nil {
		return err
	}
	if text, err = hujson.Standardize(text); err != nil { // it may have comments
		return err
	}
	var config struct{ Image string }
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err = registry.Find(ctx, config.Image) // go-containerregistry, with this process's environment
	return err
}
