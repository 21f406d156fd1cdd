package reference

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"dagger/parity/internal/msbdriver"
	"dagger/parity/internal/reference/binaries"
	"dagger/parity/internal/reference/manifest"
)

// builtin is the SOURCE of the provider that is part of the CLI. That of any other leads to a provider.yaml.
const builtin = "microsandbox"

// readManifest reads the manifest that a SOURCE leads to, and gives the source in a form that does not depend on the working folder.
func readManifest(ctx context.Context, source string) (m *manifest.Manifest, from string, err error) {
	m, from, err = manifest.Load(ctx, source, binaries.Download{}.Get)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("expected %q, the built-in provider, or a file, a folder or a URL of a %s: %w", builtin, manifest.FileName, err)
	}
	if err == nil && m.Agent.Driver != manifest.DriverExternal {
		err = fmt.Errorf("the provider %q has agent.driver %q: the reference CLI runs %q alone; give a CLI that runs it with --subject",
			m.Name, m.Agent.Driver, manifest.DriverExternal)
	}
	return m, from, err
}

// checkOptions checks the options of a provider, as far as the CLI can: the values of an external one are the runtime's to check.
func checkOptions(m *manifest.Manifest, options map[string]string) error {
	if m == nil {
		_, err := msbdriver.ParseOptions(options)
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if _, known := m.Options[name]; !known {
			return fmt.Errorf("unknown option %s: expected one that the provider has: %s", name, strings.Join(slices.Sorted(maps.Keys(m.Options)), ", "))
		}
	}
	return nil
}

func providerAdd() *cobra.Command {
	var name string
	var pairs []string
	c := verb("add SOURCE", "Add a provider: "+builtin+" is the built-in one; else a file, a folder or a URL of a "+manifest.FileName, cobra.ExactArgs(1),
		func(ctx context.Context, c *cobra.Command, args []string) error {
			s, err := openState()
			if err != nil {
				return err
			}
			p := provider{Name: name, Source: args[0]}
			var m *manifest.Manifest
			if p.Source != builtin {
				if m, p.Source, err = readManifest(ctx, p.Source); err != nil {
					return err
				}
			}
			if p.Name == "" && m != nil {
				p.Name = m.Name
			} else if p.Name == "" {
				p.Name = p.Source
			}
			if p.Options, err = options(pairs); err != nil {
				return err
			}
			if err := checkOptions(m, p.Options); err != nil {
				return err
			}
			if _, err := s.provider(p.Name); err == nil {
				return fmt.Errorf("provider %q is there already: delete it first", p.Name)
			} else if !errors.Is(err, errNoRecord) {
				return err
			}
			if m != nil {
				if err := writeManifest(s.providerManifest(p.Name), m); err != nil {
					return err
				}
			}
			if err := write(s.providerFile(p.Name), p); err != nil {
				return err
			}
			fmt.Fprintf(c.ErrOrStderr(), "added the provider %s\n", p.Name)
			return nil
		})
	c.Flags().StringVar(&name, "name", "", "the provider's name (default SOURCE, or the manifest's name)")
	c.Flags().StringArrayVarP(&pairs, "option", "o", nil, "an option of the provider, KEY=VALUE; may be given again")
	c.Flags().Bool("use", true, "has no effect: workspace up always names its provider")
	return c
}

// writeManifest keeps a manifest as it was read.
func writeManifest(file string, m *manifest.Manifest) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return renameio.WriteFile(file, m.Source, 0o600)
}

// storedManifest reads a manifest that writeManifest has written.
func storedManifest(file string) (*manifest.Manifest, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the provider's manifest: %w", err)
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

func providerDelete() *cobra.Command {
	var ignore bool
	c := verb("delete NAME", "Delete a provider; its workspaces stay", cobra.ExactArgs(1),
		func(_ context.Context, c *cobra.Command, args []string) error {
			s, err := openState()
			if err != nil {
				return err
			}
			if _, err := s.provider(args[0]); ignore && errors.Is(err, errNoRecord) {
				return nil
			} else if err != nil {
				return err
			}
			if err := os.Remove(s.providerFile(args[0])); err != nil {
				return err
			}
			if err := os.Remove(s.providerManifest(args[0])); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		})
	c.Flags().BoolVar(&ignore, "ignore-not-found", false, "a provider that does not exist is no error")
	return c
}

func providerList() *cobra.Command {
	return list("List the providers", "NAME\tSOURCE\tOPTIONS", state.providers, func(p provider) []string {
		var set []string
		for _, k := range slices.Sorted(maps.Keys(p.Options)) {
			set = append(set, k+"="+p.Options[k])
		}
		return []string{p.Name, p.Source, strings.Join(set, " ")}
	})
}
