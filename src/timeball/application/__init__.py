"""timeball.application"""
