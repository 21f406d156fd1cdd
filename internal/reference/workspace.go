package reference

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"dagger/parity/internal/reference/driver"
)

// guestAgent is where the agent is in a guest.
const guestAgent = "/usr/local/bin/parity-agent"

// The states of a workspace.
const (
	stateRunning  = "Running"
	stateStopped  = "Stopped"
	stateNotFound = "NotFound" // there is a record and no machine: its making was cut off, or somebody removed it
)

// upFlags are the flags of `workspace up`.
type upFlags struct {
	id, provider, ide, devcontainer string
	recreate                        bool
	options                         []string
}

func workspaceUp() *cobra.Command {
	var f upFlags
	c := verb("up FOLDER", "Bring a workspace up: make it, or start it; prints JSON", cobra.ExactArgs(1),
		func(ctx context.Context, c *cobra.Command, args []string) error {
			w, machine, err := up(ctx, c, f, args[0])
			if err != nil {
				return errors.Join(ended(c, err), printJSON(c, struct {
					Outcome string `json:"outcome"`
					Message string `json:"message"`
				}{"error", err.Error()}))
			}
			return printJSON(c, struct {
				Outcome      string `json:"outcome"`
				ContainerID  string `json:"containerId"`
				RemoteUser   string `json:"remoteUser"`
				RemoteFolder string `json:"remoteWorkspaceFolder"`
			}{"success", machine, w.RemoteUser, w.RemoteFolder})
		})
	c.Flags().StringVar(&f.id, "id", "", "the workspace's id (default: the folder's name)")
	c.Flags().StringVar(&f.provider, "provider", "", "the provider's name")
	c.Flags().StringVar(&f.ide, "ide", "none", "none: the reference CLI opens no editor")
	c.Flags().BoolVar(&f.recreate, "recreate", false, "remove the machine and make it anew, from the present devcontainer.json and options")
	c.Flags().StringVar(&f.devcontainer, "devcontainer", "", "the devcontainer.json, relative to FOLDER")
	c.Flags().StringVar(&f.devcontainer, "devcontainer-path", "", "the same as --devcontainer")
	_ = c.Flags().MarkHidden("devcontainer-path")
	c.Flags().StringArrayVar(&f.options, "provider-option", nil,
		"an option of the provider for this workspace, KEY=VALUE; takes effect when the machine is made; may be given again")
	c.Flags().String("result-format", "json", "has no effect: the result is JSON")
	return c
}

// up brings a workspace up and gives its record and the name of its machine.
func up(ctx context.Context, c *cobra.Command, f upFlags, folder string) (w workspace, machine string, err error) {
	folder, err = filepath.Abs(folder)
	if err != nil {
		return w, "", err
	}
	if info, err := os.Stat(folder); err != nil {
		return w, "", fmt.Errorf("the workspace's folder: %w", err)
	} else if !info.IsDir() {
		return w, "", fmt.Errorf("the workspace's folder: %s is not a folder", folder)
	}
	if f.ide != "none" {
		return w, "", fmt.Errorf("--ide: expected none, seen %q", f.ide)
	}
	if f.provider == "" {
		return w, "", errors.New("--provider: name a provider; `provider list` shows those that there are")
	}
	if f.id == "" {
		f.id = filepath.Base(folder)
	}
	own, err := options(f.options)
	if err != nil {
		return w, "", err
	}
	s, err := openState()
	if err != nil {
		return w, "", err
	}
	unlock, err := s.lock(ctx, f.id)
	if err != nil {
		return w, "", err
	}
	defer unlock()
	p, err := s.provider(f.provider)
	if err != nil {
		return w, "", err
	}

	w, err = s.workspace(f.id)
	known := err == nil
	switch {
	case errors.Is(err, errNoRecord):
		w = workspace{ID: f.id, UID: strings.ToLower(rand.Text()[:10]), Created: time.Now().UTC()}
		w.Provider.Name, w.Provider.Source = p.Name, p.Source
		w.Source.LocalFolder = folder
	case err != nil:
		return w, "", err
	case w.Provider.Name != p.Name:
		return w, "", fmt.Errorf("workspace %q is the provider %q's, not %q's: delete it first", w.ID, w.Provider.Name, p.Name)
	case w.Source.LocalFolder != folder:
		return w, "", fmt.Errorf("workspace %q is of the folder %s, not %s: delete it first", w.ID, w.Source.LocalFolder, folder)
	}
	w.OwnOptions = merged(w.OwnOptions, own)
	if !known {
		defer func() { err = errors.Join(err, s.forget(w.ID)) }()
	}
	present := merged(p.Options, w.OwnOptions)
	asNew := w
	asNew.Provider.Source = p.Source
	if _, err := s.openAs(asNew, s.providerManifest(p.Name), present); err != nil {
		return w, "", err
	}
	if known && w.Made && !f.recreate {
		if len(own) > 0 {
			fmt.Fprintln(c.ErrOrStderr(), "the options take effect with --recreate only: the machine keeps those that it was made with")
		}
		if there, err := startMade(ctx, s, w); there || err != nil {
			return w, w.Machine, err
		}
	}
	w = asNew
	d, err := s.openToMake(ctx, w, present)
	if err != nil {
		return w, "", err
	}
	defer func() { err = errors.Join(err, s.forgetThere(ctx, w.ID, d, err)) }()
	defer release(d)
	w.Provider.Options = present
	machine, err = remake(ctx, c, s, d, &w, f.devcontainer, known)
	return w, machine, err
}

// startMade starts the machine that a workspace has; there may be none. It is started without a look at it: that costs as much as the
// start of one that runs already.
func startMade(ctx context.Context, s state, w workspace) (there bool, err error) {
	d, err := s.openToStart(ctx, w)
	if err != nil {
		return false, err
	}
	defer release(d)
	if err = d.Start(ctx, w.UID); errors.Is(err, driver.ErrNotFound) {
		return false, nil
	}
	return true, err
}

// remake makes a workspace's machine, in place of the one it has, and gives its id. A kill at any point leaves a record from which up and delete go on.
func remake(ctx context.Context, c *cobra.Command, s state, d driver.Driver, w *workspace, given string, replace bool) (machine string, err error) {
	config, err := readDevcontainer(w.Source.LocalFolder, given)
	if err != nil {
		return "", err
	}
	agent, err := findAgent()
	if err != nil {
		return "", err
	}
	if config, err = misbehavingConfig(ctx, config); err != nil {
		return "", err
	}
	image := config.Image
	if config.isBuilt() { // before anything is removed: a build that fails leaves the workspace as it is
		if err := buildsHere(d); err != nil {
			return "", err
		}
		if image, err = buildImage(ctx, c, w, config); err != nil {
			return "", err
		}
	}
	if w.RemoteFolder = config.WorkspaceFolder; w.RemoteFolder == "" {
		w.RemoteFolder = "/workspaces/" + filepath.Base(w.Source.LocalFolder)
	}
	w.Made = false
	if err := s.keepManifest(*w); err != nil {
		return "", err
	}
	if err := write(s.workspaceFile(w.ID), w); err != nil {
		return "", err
	}
	if replace {
		fmt.Fprintf(c.ErrOrStderr(), "removing the machine of workspace %s, if it has one\n", w.ID)
		if err := d.Delete(ctx, w.UID); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(c.ErrOrStderr(), "making a machine for workspace %s from %s\n", w.ID, image)
	made, err := d.Run(ctx, w.UID, driver.RunOptions{
		Image: image, ImageBuiltLocally: config.isBuilt(), User: config.user(), Environment: config.ContainerEnv,
		Labels: map[string]string{"devsy.workspace": w.ID},
		Files:  []driver.File{{Source: agent, Target: guestAgent}},
	})
	if err != nil {
		return "", err
	}
	w.Made, w.Machine, w.RemoteUser = true, made.ID, remoteUser(config, made)
	removeBuilt(ctx, c, w, config.isBuilt())
	return made.ID, write(s.workspaceFile(w.ID), w)
}

// remoteUser is whom commands run as: whom devcontainer.json names, or else the image; root if that names nobody. A group is left out.
func remoteUser(config devcontainer, m driver.Machine) string {
	for _, user := range []string{config.user(), m.User} {
		if name, _, _ := strings.Cut(user, ":"); name != "" {
			return name
		}
	}
	return "root"
}

// findAgent finds the agent for guests on this machine.
func findAgent() (string, error) {
	agent := os.Getenv("DEVSY_AGENT")
	if agent == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		agent = filepath.Join(filepath.Dir(self), "parity-agent")
	}
	info, err := os.Stat(agent)
	if err == nil && (!info.Mode().IsRegular() || info.Mode()&0o111 == 0) {
		err = &fs.PathError{Op: "run", Path: agent, Err: fs.ErrPermission}
	}
	if err != nil {
		return "", fmt.Errorf("the agent for guests: %w; give the path of parity-agent in DEVSY_AGENT", err)
	}
	return filepath.Abs(agent)
}

// opened gives a workspace's record and its driver.
func opened(id string) (w workspace, d driver.Driver, err error) {
	s, err := openState()
	if err != nil {
		return w, nil, err
	}
	return s.open(id)
}

// openedAlone is opened while no other command changes the workspace, until unlock is called. There is no lock when it fails.
func openedAlone(ctx context.Context, id string) (s state, w workspace, d driver.Driver, unlock func(), err error) {
	if s, err = openState(); err != nil {
		return s, w, nil, nil, err
	}
	if unlock, err = s.lock(ctx, id); err != nil {
		return s, w, nil, nil, err
	}
	if w, d, err = s.open(id); err != nil {
		unlock()
	}
	return s, w, d, unlock, err
}

// stateOf asks for a workspace's state.
func stateOf(ctx context.Context, d driver.Driver, w workspace) (string, error) {
	m, found, err := d.Find(ctx, w.UID)
	switch {
	case err != nil:
		return "", err
	case !found:
		return stateNotFound, nil
	case m.Running:
		return stateRunning, nil
	}
	return stateStopped, nil
}

func workspaceSSH() *cobra.Command {
	var command, user string
	var stdio bool
	c := verb("ssh ID", "Run a shell command in a running workspace, or serve SSH over standard input and output", cobra.ExactArgs(1),
		func(ctx context.Context, c *cobra.Command, args []string) error {
			if stdio == c.Flags().Changed("command") {
				return errors.New("give one of --command and --stdio: there is no terminal here")
			}
			w, d, err := opened(args[0])
			if err != nil {
				return err
			}
			defer release(d)
			if user != "" && user != w.RemoteUser {
				return fmt.Errorf("--user: the commands of workspace %q run as %q; set remoteUser in devcontainer.json and recreate it", w.ID, w.RemoteUser)
			}
			// Running something in a stopped machine would boot it without a word.
			state, err := stateOf(ctx, d, w)
			if err == nil && state != stateRunning {
				err = fmt.Errorf("workspace %q is not running, its state is %s: bring it up with `workspace up`", w.ID, state)
			}
			if err != nil {
				return err
			}
			argv := []string{guestAgent, "ssh", "--stdio", "--dir", w.RemoteFolder}
			argv = append(argv, agentFault(w)...)
			if !stdio {
				argv = []string{guestAgent, "run", "--dir", w.RemoteFolder, "/bin/sh", "-c", command}
			}
			code, err := d.Exec(ctx, w.UID, misbehavingArgv(argv), driver.Streams{In: c.InOrStdin(), Out: c.OutOrStdout(), Err: c.ErrOrStderr()})
			if err == nil && code != 0 {
				err = &Exit{code}
			}
			return err
		})
	c.Flags().StringVar(&command, "command", "", "the shell command; its exit code is this command's")
	c.Flags().BoolVar(&stdio, "stdio", false, "serve SSH over standard input and output")
	c.Flags().StringVar(&user, "user", "", "the user; only the workspace's own is served")
	return c
}

func workspaceStop() *cobra.Command {
	return verb("stop ID", "Stop a workspace", cobra.ExactArgs(1), func(ctx context.Context, _ *cobra.Command, args []string) error {
		_, w, d, unlock, err := openedAlone(ctx, args[0])
		if err != nil {
			return err
		}
		defer unlock()
		defer release(d)
		if err := d.Stop(ctx, w.UID); err != nil {
			return fmt.Errorf("stop workspace %q: %w", w.ID, err)
		}
		return nil
	})
}

func workspaceStatus() *cobra.Command {
	var asJSON func() (bool, error)
	c := verb("status ID", fmt.Sprintf("Print a workspace's state; exit code %d when it does not exist", exitMissing), cobra.ExactArgs(1),
		func(ctx context.Context, c *cobra.Command, args []string) error {
			inJSON, err := asJSON()
			if err != nil {
				return err
			}
			w, d, err := opened(args[0])
			if errors.Is(err, errNoRecord) {
				_ = ended(c, err)
				return &Exit{exitMissing}
			}
			if err != nil {
				return err
			}
			defer release(d)
			state, err := stateOf(ctx, d, w)
			if err != nil {
				return err
			}
			if !inJSON {
				_, err := fmt.Fprintln(c.OutOrStdout(), state)
				return err
			}
			return printJSON(c, struct {
				ID       string `json:"id"`
				Context  string `json:"context"`
				Provider string `json:"provider"`
				State    string `json:"state"`
			}{w.ID, contextName, w.Provider.Name, state})
		})
	asJSON = resultFormat(c)
	return c
}

func workspaceList() *cobra.Command {
	return list("List the workspaces", "ID\tUID\tPROVIDER\tFOLDER", state.workspaces, func(w workspace) []string {
		return []string{w.ID, w.UID, w.Provider.Name, w.Source.LocalFolder}
	})
}

func workspaceDelete() *cobra.Command {
	var ignore bool
	c := verb("delete ID", "Delete a workspace and its machine, running or not", cobra.ExactArgs(1),
		func(ctx context.Context, c *cobra.Command, args []string) error {
			s, w, d, unlock, err := openedAlone(ctx, args[0])
			if ignore && errors.Is(err, errNoRecord) {
				return nil
			}
			if err != nil {
				return err
			}
			defer unlock()
			defer release(d)
			// The record goes last: as long as there may be a machine, there is a record of it.
			if err := d.Delete(ctx, w.UID); err != nil {
				return fmt.Errorf("delete workspace %q: %w", w.ID, err)
			}
			if err := removeThere(ctx, d); err != nil {
				return fmt.Errorf("delete workspace %q: %w", w.ID, err)
			}
			removeBuilt(ctx, c, &w, false)
			return os.RemoveAll(s.workspaceDir(w.ID))
		})
	c.Flags().BoolVar(&ignore, "ignore-not-found", false, "a workspace that does not exist is no error")
	c.Flags().Bool("force", false, "has no effect: a delete neither asks nor minds the state")
	return c
}
